"""Several hosts behind a reverse proxy share limits and bans in Redis, which is killed and restarted."""
