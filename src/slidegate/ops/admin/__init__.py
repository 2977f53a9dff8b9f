"""The admin API, with which operators look at a limiter and change its state, as JSON."""
