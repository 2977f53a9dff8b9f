"""What looks on and operates: statistics, metrics, the dashboard, the command, replays of access logs.

Nothing of the library imports this package, and it imports the library by its public names.
"""
