"""Places of concurrency limits, as a limiter deals with them."""
