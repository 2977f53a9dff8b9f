"""Several hosts behind one front share their limits and bans in Redis, which is killed under them and comes back."""
