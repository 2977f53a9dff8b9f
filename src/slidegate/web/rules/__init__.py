"""Rules: requests are held to limits, counted by a key."""
