"""The kinds of events: every kind that is told is documented, and every documented kind is told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from slidegate.core.protocols import Event

SOURCE = Path(__file__).resolve().parents[2] / "src" / "slidegate"
CONFIG_FILE = {"config_reloaded", "config_rejected", "config_shrunk", "windows_restarted"}
"""Kinds that `web/config/file_gate.py` hands to a method of its own."""


def documented() -> set[str]:
    """Return the kinds that the docstring of `Event` lists."""
    table = re.search(r"Kinds:\n(.*?)\n\n", Event.__doc__ or "", re.DOTALL)
    assert table is not None
    return {kind for line in table[1].splitlines() for kind in re.findall("``([a-z_]+)``", line.split(": ")[0])}


def first_words(called: str) -> Iterator[str]:
    """Yield the texts in the first argument of each call of a function or class."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == called and node.args:
                for part in ast.walk(node.args[0]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def test_every_kind_of_event_is_documented_and_every_documented_kind_is_told() -> None:
    told = set(first_words("Event"))
    assert len(told) > 20
    assert documented() == told | CONFIG_FILE


def test_the_kinds_of_a_configuration_file_are_told_there() -> None:
    source = (SOURCE / "web" / "config" / "file_gate.py").read_text("utf-8")
    assert all(f'"{kind}"' in source for kind in CONFIG_FILE)
