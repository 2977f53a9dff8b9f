"""Paths: their patterns and readings, and the routes that they lead to."""
