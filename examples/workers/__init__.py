"""Several workers that share their counts."""
