"""A limiter for threads that have no event loop, and limits around functions."""
