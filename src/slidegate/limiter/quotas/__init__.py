"""The public `Quota`, and the time zones that it goes by."""
