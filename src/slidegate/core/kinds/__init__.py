"""What may stand where a limit may stand: the base of all kinds, and the kinds that are no sliding window."""
