"""Replays access logs through the middleware in virtual time, and suggests limits from the traffic of clients."""
