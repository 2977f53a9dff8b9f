"""Counts and times of events, in sliding slices."""
