"""Ban policies for a site, and a replay of access logs that counts whom they ban: ``python -m examples.bans``."""
