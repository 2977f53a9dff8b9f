"""Bans as a state machine: policies, what is known about a key, and the bans in force."""
