"""The dashboard: a page drawn by the server, and a JSON API of the same operations."""
