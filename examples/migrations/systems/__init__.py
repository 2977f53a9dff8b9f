"""One file for each library, or for models of limiters that do not run in Python."""
