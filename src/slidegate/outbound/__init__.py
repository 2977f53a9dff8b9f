"""Requests to others: their limits are kept, their answers heeded."""
