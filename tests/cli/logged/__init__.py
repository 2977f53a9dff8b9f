"""The sub-commands that read access logs."""
