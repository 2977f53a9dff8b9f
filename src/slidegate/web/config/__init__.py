"""`slidegate.toml`: its schema, its errors, and the gate that follows it."""
