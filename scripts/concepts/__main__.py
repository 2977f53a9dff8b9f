"""Write the pictures of docs/concepts, or check them: ``python -m scripts.concepts [--check]``."""

from __future__ import annotations

import sys

from .gallery import check, write


def main(arguments: list[str]) -> int:
    """Write or check; return the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m scripts.concepts [--check]", file=sys.stderr)
        return 2
    if not arguments:
        write()
        return 0
    found = check()
    print("\n".join(found) or "all pictures are as they are drawn")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
