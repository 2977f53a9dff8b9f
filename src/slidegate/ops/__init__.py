"""Looks at traffic from outside: access logs."""
