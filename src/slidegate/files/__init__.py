"""Reads `slidegate.toml`, and reads files again when they change."""
