"""Bans as a state machine: policies, the strike records of keys, the bans in force, and the rules between them."""
