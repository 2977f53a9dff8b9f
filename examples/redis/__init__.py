"""Two processes share one limit in Redis, and Redis is killed under them: ``python -m examples.redis``."""
