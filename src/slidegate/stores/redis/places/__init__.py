"""Places of concurrency limits in Redis: which of them this process holds, and how they are renewed."""
