"""Replays access logs in virtual time through the gate, and works out limits from what clients did."""
