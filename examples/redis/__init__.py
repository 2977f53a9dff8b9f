"""Two processes that share one limit in Redis, and what happens when Redis is killed: ``python -m examples.redis``."""
