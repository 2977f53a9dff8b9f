"""The systems: one file for each library, and one for models of limiters that do not run in Python."""
