"""A client that keeps the limit of somebody else's API, shown against an API of our own."""
