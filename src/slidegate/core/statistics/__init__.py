"""Counts and times of what happened, in sliding slices."""
