"""The reference model of windows, quotas, permits and bans: correct only, and written with the standard library."""
