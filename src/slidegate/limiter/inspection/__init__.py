"""Looking at what a limiter counts: its gates, the rules they count under, and the windows of one key."""
