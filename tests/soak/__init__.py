"""Minutes of mixed load with kills and restarts, judged from outside; `__main__` is where to begin."""
