"""Measurements, side by side in one process: `python3 dev.py bench NAME`. The tables are kept in docs/benchmarks.md."""
