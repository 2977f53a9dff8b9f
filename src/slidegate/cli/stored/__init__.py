"""Commands that look after a store: its bans, its keys, and the figures that workers publish in it."""
