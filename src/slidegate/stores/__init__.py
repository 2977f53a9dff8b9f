"""What remembers windows: memory for one process."""
