"""The pages beside the examples: each command starts what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGES = sorted(EXAMPLES.rglob("README.md"))
COMMAND = re.compile(r"(?:^\$ |`)(python3 dev\.py|uvicorn|python) ([^`\n]+)", re.MULTILINE)


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_start_something(page: Path) -> None:
    found = COMMAND.findall(page.read_text("utf-8"))
    assert found
    assert [(program, rest) for program, rest in found if not starts(program, rest.split())] == []


def starts(program: str, words: list[str]) -> bool:
    """Tell whether the example that a command names is there."""
    if program == "python3 dev.py":
        name = words[1] if words[0] == "example" else words[0]
        return name == "NAME" or (EXAMPLES / name / "__main__.py").is_file()
    modules = [re.sub(r":\w+$", "", word) for word in words if word.startswith("examples.")]
    (path,) = (ROOT / module.replace(".", "/") for module in modules)
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
