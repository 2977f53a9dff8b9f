"""The memory store, for one process."""
