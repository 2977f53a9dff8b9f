"""The arithmetic of windows: the theory, the two rings, quotas, places, and their bytes."""
