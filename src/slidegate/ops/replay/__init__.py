"""Replays access logs through the real middleware in virtual time, and measures how busy clients were.

`logs` reads files, `replay` sends records to copies of middlewares, and `report` counts the results.
"""
