"""The arithmetic of windows: the theory, the two rings, places to wait for, and their bytes."""
