"""The formats of access logs: each module reads the text of one line, or says why it holds no request."""
