"""The walk along docs/first_steps.md: it saves and types, and notices where a page is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ..redis_servers import free_port
from .walk import PageError, Walk, pattern, steps

pytestmark = pytest.mark.all


@pytest.mark.parametrize(
    ("command", "shown", "told"),
    [
        ("echo one", "two", "the page shows"),
        ("printf 'one\\ntwo\\n'", "one", "the page shows"),
        ("echo one", "...\ntwo", "the page shows"),
        ("false\necho after", "after", "line 1: false\necho after\nended with"),
        ("false | cat", "", "ended with 1"),
        ("nothing_of_this_name", "", "ended with 127"),
    ],
)
def test_another_output_and_a_command_that_fails_are_found(command: str, shown: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    walk = Walk(tmp_path / "home", free_port(), dict(os.environ))
    (step,) = steps(f"```bash\n{command}\n```\n\n```text\n{shown}\n```\n")
    with pytest.raises(PageError, match=re.escape(told)):
        walk.take(step)


def test_only_the_shape_of_a_part_that_varies_counts() -> None:
    wanted = pattern("took 1.25 s at 12:00\n...\nend\n", ("1.25 s", "12:00"))
    assert wanted.fullmatch("took 30.1 s at 03:14\nend\n")
    assert wanted.fullmatch("took 30.1 s at 03:14\nmore\nand more\nend\n")
    for other in ("took 30 s at 03:14\nend\n", "Took 1.2 s at 03:14\nend\n", "took 1.2 s at 03:14\nmore\n"):
        assert wanted.fullmatch(other) is None
