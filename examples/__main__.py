"""Lists the examples: ``python3 dev.py example``."""

from pathlib import Path

names = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))
print(f"python3 dev.py example NAME, with one of: {', '.join(names)}")
