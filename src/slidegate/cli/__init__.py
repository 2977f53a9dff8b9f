"""The `slidegate` command. It needs the extra `slidegate[cli]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

_NEEDED: Final = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: The words behind ``slidegate``; by default those of the process.
    """
    missing = [name for name in _NEEDED if not find_spec(name)]
    if missing:
        sys.stderr.write(f'slidegate: the command needs the package {missing[0]}: pip install "slidegate[cli]"\n')
        return 2
    # Not before: without the extra, the import would be a traceback in place of the sentence.
    from .program import run

    return run(sys.argv[1:] if arguments is None else arguments)
