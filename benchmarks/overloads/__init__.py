"""The server and the client of the benchmark of overload."""
