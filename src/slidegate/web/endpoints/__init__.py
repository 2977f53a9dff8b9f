"""Limits at the endpoint: a dependency and a decorator in one object."""
