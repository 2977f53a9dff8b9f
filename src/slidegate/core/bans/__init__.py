"""Bans as a state machine: policies, strike records of keys, bans, and the rules that connect them."""
