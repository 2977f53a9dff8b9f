"""Bans as a state machine: policies, the standings of keys, the bans in force, and the rules between them."""
