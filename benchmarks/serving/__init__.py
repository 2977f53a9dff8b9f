"""Servers under load, for `benchmarks/server.py`: the applications, their processes, and two clients."""
