"""Benchmarks that compare candidates in one process: `python3 dev.py bench NAME`. Results are in docs/benchmarks.md."""
