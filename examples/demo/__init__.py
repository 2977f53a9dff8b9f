"""A small site behind the middleware, and a replay of an access log through it: ``python3 dev.py demo``."""
