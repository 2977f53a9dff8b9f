"""A replay of access logs that counts whom the policies of `examples.login` ban: ``python -m examples.bans``."""
