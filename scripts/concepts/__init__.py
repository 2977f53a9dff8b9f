"""The pictures of docs/concepts, drawn from windows and ban policies that really run.

`python -m scripts.concepts` writes them anew, `--check` says which of them are not as they would be drawn.
"""
