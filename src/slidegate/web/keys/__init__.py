"""Keys: who is counted."""
