"""Benchmarks that compare candidates in one run: `python3 dev.py bench NAME`. Results are in benchmarks/README.md."""
