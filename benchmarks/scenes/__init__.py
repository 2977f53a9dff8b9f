"""Attacks on a gate, played beside an honest client."""
