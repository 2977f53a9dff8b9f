"""The walk along docs/first_steps.md: it saves and types, and notices where a page is wrong."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..redis_servers import free_port
from .walk import PageError, Walk, pattern, steps

pytestmark = pytest.mark.all


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    (tmp_path / "home").mkdir()
    walk = Walk(
        tmp_path / "home", free_port(), {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    )
    yield walk
    walk.interrupt()


def follow(walk: Walk, page: str) -> None:
    for step in steps(page):
        walk.take(step)


def typed(code: str, shown: str | None = None) -> str:
    """Return the part of a page that has a command, and its output."""
    return f"```bash\n{code}\n```\n\n" + (f"```text\n{shown}\n```\n\n" if shown is not None else "")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("echo one", "two"),
        ("printf 'one\\ntwo\\n'", "one"),
        ("echo one", "...\ntwo"),
    ],
)
def test_another_output_is_found(walk: Walk, command: str, shown: str) -> None:
    with pytest.raises(PageError, match="the page shows"):
        follow(walk, typed(command, shown))


@pytest.mark.parametrize("command", ["false", "false\necho after", "false | cat", "nothing_of_this_name"])
def test_a_command_that_fails_is_found(walk: Walk, command: str) -> None:
    with pytest.raises(PageError, match=f"line 1: {re.escape(command)}\nended with"):
        follow(walk, typed(command))


def test_only_the_shape_of_a_part_that_varies_counts() -> None:
    wanted = pattern("took 1.25 s at 12:00\n...\nend\n", ("1.25 s", "12:00"))
    assert wanted.fullmatch("took 30.1 s at 03:14\nend\n")
    assert wanted.fullmatch("took 30.1 s at 03:14\nmore\nand more\nend\n")
    for other in ("took 30 s at 03:14\nend\n", "Took 1.2 s at 03:14\nend\n", "took 1.2 s at 03:14\nmore\n"):
        assert wanted.fullmatch(other) is None
