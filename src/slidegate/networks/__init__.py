"""Owners of addresses, by lists of networks, operators and countries; and the tools that an MCP request calls."""
