"""Files of networks: the I/O that the core must not do."""
