"""Every finding has its heading, and every page that the source names is there."""

import re

from slidegate.ops.cli.check import CODES as SUBJECTS
from slidegate.web.checks import CODES

from .anchors import ROOT, leads_somewhere

ERRORS = ROOT / "docs" / "reference" / "errors.md"
PAGE = re.compile(r"docs/[\w/]+\.md(?:#[\w-]+)?")


def test_every_finding_has_its_heading_in_order() -> None:
    section = ERRORS.read_text("utf-8").partition("\n## Findings\n")[2].partition("\n## ")[0]
    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == [*CODES, *SUBJECTS]
    assert not set(SUBJECTS) & set(CODES)


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
