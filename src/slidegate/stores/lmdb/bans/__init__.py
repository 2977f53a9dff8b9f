"""Bans in rows of LMDB."""
