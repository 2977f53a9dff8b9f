"""A small site behind the gate, and a replay of an access log through it: ``python -m examples.demo``."""
