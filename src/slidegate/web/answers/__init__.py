"""Answers: refusals, header fields, and the record of what went out."""
