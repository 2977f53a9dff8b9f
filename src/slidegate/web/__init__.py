"""Enforces limits on requests: rules, keys, the middleware and its responses."""
