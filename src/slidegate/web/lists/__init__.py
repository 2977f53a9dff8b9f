"""Block and allow lists in files that are followed."""
