"""One process, in memory."""
