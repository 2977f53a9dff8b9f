"""The part that sees the requests: rules, keys, the middleware and its answers."""
