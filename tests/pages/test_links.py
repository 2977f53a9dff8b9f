"""Every page that the source names is there."""

from __future__ import annotations

import re

from .anchors import ROOT, leads_somewhere

PAGE = re.compile(r"docs/[\w/]+\.md(?:#[\w-]+)?")


def test_every_page_that_the_source_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for room in ("src", "examples", "scripts", "requirements")
        for path in (ROOT / room).rglob("*")
        if path.suffix in {".py", ".toml", ".lua", ".js", ".html", ".in", ".yml"}
        for page in PAGE.findall(path.read_text("utf-8"))
    }
    assert named
    assert {(path, page) for path, page in named if not leads_somewhere(ROOT / "README.md", page)} == set()
