"""The conversation with a server: connections, pipelines and faults."""
