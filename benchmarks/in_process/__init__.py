"""Requests straight into ASGI applications, with other code between two of them; processes that measure them."""
