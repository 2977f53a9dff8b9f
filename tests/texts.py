"""Texts that tests compare whole: files of entries, each a line that begins with a prompt and what it gives.

A blank line and comments may stand between two entries. ``pytest --update`` writes what is given now into the files;
read the diff before you commit it.
"""

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path

BETWEEN = re.compile(r"\n(\n(?:#.*\n)*)\Z")
"""What stands between two entries: one blank line, then comments."""


def answered(text: str, prompt: str, answer: Callable[[str], str]) -> str:
    """Return the text of a file with what each of its entries gives now."""
    head, *entries = re.split(f"^{re.escape(prompt)}", text, flags=re.MULTILINE)
    parts = [head]
    for entry in entries:
        question, _, told = entry.partition("\n")
        between = BETWEEN.search(f"\n{told}")
        given = answer(question).rstrip("\n")
        parts += [f"{prompt}{question}\n", f"{given}\n" if given else "", between[1] if between is not None else ""]
    return "".join(parts).rstrip("\n") + "\n"


def compare(path: Path, text: str, *, update: bool) -> None:
    """Check that a file has this text, or write it."""
    expected = path.read_text("utf-8")
    if update and not os.environ.get("CI"):
        path.write_text(text, "utf-8")
    elif text != expected:
        lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "now", n=1, lineterm="")
        raise AssertionError("\n".join([*lines][:18]) + "\n(pytest --update writes the texts of now)")
