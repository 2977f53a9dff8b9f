"""Block and allow lists in files, which are read again when they change."""
