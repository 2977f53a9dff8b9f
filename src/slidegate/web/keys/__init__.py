"""Keys: the client, user, header value or other text that a rule counts by."""
