"""A login that holds out against guessers, with an admin page: ``python3 dev.py example login``."""
