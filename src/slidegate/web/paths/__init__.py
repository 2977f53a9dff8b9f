"""Paths: their readings, and the routes that they lead to."""
