"""Replays access logs in virtual time through the middleware, and works out limits from what clients did."""
