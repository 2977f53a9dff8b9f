"""Several workers that count together."""
