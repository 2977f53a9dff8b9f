"""The commands that pages show work, one after the other, as a reader would type them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..test_docs import RUN_HERE, page_name
from .blocks import SHELL, Block, blocks
from .page_shell import PageShell

pytestmark = pytest.mark.all


def typed(block: Block) -> str:
    """Return the lines of a block that a reader types."""
    if block.language == "bash":
        return block.code
    lines = block.code.replace("\\\n", " ").splitlines(keepends=True)
    return "".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))


def does_something(block: Block) -> bool:
    """Tell whether a block has commands that are not the business of another test."""
    others = ("pip install", "python3 dev.py", "#")
    return (
        block.language in SHELL
        and block.mark != "not run"
        and not all(line.startswith(others) for line in typed(block).splitlines() if line.strip())
    )


def pages_with_commands() -> list[Path]:
    return [page for page in RUN_HERE if any(does_something(block) for block in blocks(page.read_text("utf-8")))]


@contextmanager
def shell(directory: Path) -> Iterator[PageShell]:
    opened = PageShell(directory)
    try:
        yield opened
    finally:
        opened.close()


def follow(text: str, opened: PageShell) -> None:
    """Save the files and run the commands of a page, in its order."""
    for block in blocks(text):
        if block.mark == "file":
            opened.write(block.value, block.code)
        elif does_something(block):
            opened.run(typed(block))


@pytest.mark.parametrize("page", pages_with_commands(), ids=page_name)
def test_commands_on_the_page_run_in_its_order(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    if "curl " in text and not shutil.which("curl"):
        pytest.skip("no curl on PATH: sudo apt install curl")
    with shell(tmp_path) as opened:
        follow(text, opened)
