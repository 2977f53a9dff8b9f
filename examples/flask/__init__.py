"""Limits in a WSGI application: every request, wrong passwords, and calls of another service."""
