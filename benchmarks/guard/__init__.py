"""The guard counts instructions of a request, which no other program changes: `python3 dev.py bench --check`."""
