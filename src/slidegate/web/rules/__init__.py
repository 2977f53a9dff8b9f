"""Rules: which requests are held to which limits."""
