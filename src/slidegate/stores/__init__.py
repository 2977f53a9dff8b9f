"""The stores, which remember windows and bans: memory for one process."""
