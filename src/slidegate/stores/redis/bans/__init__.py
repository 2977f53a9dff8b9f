"""Bans on Redis: the commands, the replica of a worker, and their events."""
