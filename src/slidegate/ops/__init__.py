"""What looks on and operates: statistics, metrics, the dashboard, the command, replays of access logs.

Nothing of the library imports this package, and it imports the library by public names and those that
`tests/test_architecture.py` lists.
"""
