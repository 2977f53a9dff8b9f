"""Shares of a limit that a worker takes in one question and spends by itself."""
