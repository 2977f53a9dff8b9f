"""The files of an LMDB store: opening, locking, growing and checking them."""
