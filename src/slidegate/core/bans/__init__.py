"""Bans: policies, strikes and levels, bans and their keys, networks, and events."""
