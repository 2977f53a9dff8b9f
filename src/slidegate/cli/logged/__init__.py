"""The sub-commands that read what was logged and published: access logs, events, figures."""
