"""Signs that several processes serve the application: variables of the environment, and the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

_SERVERS: Final = frozenset({"uvicorn", "gunicorn", "granian", "hypercorn", "fastapi", "slidegate"})
_VARIABLES: Final = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")
_WORKERS: Final = r"(?<!\S)(?:--workers(?:=| +)|-w ?)([0-9]{1,6})(?!\S)"


def many_workers(environment: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return the setting that starts several processes for the application; empty if there is none."""
    for variable in _VARIABLES:
        value = environment.get(variable, "")
        if value.isascii() and value.isdigit() and int(value) > 1:
            return f"{variable}={value}"
    from pathlib import Path  # nothing else needs it to serve

    program = Path(arguments[0]) if arguments else Path()
    shown = shlex.join(arguments[1:]) if {program.stem, program.parent.name} & _SERVERS else ""
    for where, words in (("GUNICORN_CMD_ARGS", environment.get("GUNICORN_CMD_ARGS", "")), ("the command line", shown)):
        counts = re.findall(_WORKERS, words)
        if counts and int(counts[-1]) > 1:
            return f"--workers {counts[-1]} in {where}"
    return ""
