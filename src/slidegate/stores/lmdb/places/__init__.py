"""Places of concurrency limits in LMDB: their rows, and which of them this process holds."""
