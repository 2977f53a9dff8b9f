"""Looks at traffic from outside: the admin API and the dashboard."""
