"""What has a name has its heading or its row, and every page that the source names is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click

import slidegate
import slidegate.core
import slidegate.httpx
from slidegate import Rule
from slidegate.core import Reason
from slidegate.ops.cli.check import CODES as SUBJECTS
from slidegate.ops.cli.main import INTERRUPTED
from slidegate.web.checks import CODES

from .anchors import ROOT, leads_somewhere

ERRORS = ROOT / "docs" / "reference" / "errors.md"
RULES = ROOT / "docs" / "guides" / "rules.md"
PAGE = re.compile(r"docs/[\w/]+\.md(?:#[\w-]+)?")


def headings(page: Path, group: str) -> list[str]:
    """Return the headings of the third level below one of the second."""
    section = page.read_text("utf-8").partition(f"\n## {group}\n")[2].partition("\n## ")[0]
    return re.findall(r"^### (.+)$", section, re.MULTILINE)


def rows(page: Path, group: str) -> list[str]:
    """Return the names at the beginning of the rows of a table below a heading of the second level."""
    section = page.read_text("utf-8").partition(f"\n## {group}\n")[2].partition("\n## ")[0]
    table = section.partition("\n|--")[2] or section.partition("\n| --")[2]
    return re.findall(r"^\| `?(\w+)`?[ :]", table, re.MULTILINE)


def exceptions() -> set[str]:
    return {
        name
        for module in (slidegate, slidegate.core, slidegate.httpx)
        for name in module.__all__
        if inspect.isclass(found := getattr(module, name)) and issubclass(found, BaseException)
    }


def test_every_finding_has_its_heading_in_order() -> None:
    assert headings(ERRORS, "Findings") == [*CODES, *SUBJECTS]
    assert not set(SUBJECTS) & set(CODES)


def test_every_exception_reason_and_exit_has_its_row() -> None:
    assert len(exceptions()) >= 8
    assert set(rows(ERRORS, "Exceptions")) == exceptions()
    assert rows(ERRORS, "Reasons") == list(Reason)
    ends = [0, click.ClickException.exit_code, click.UsageError.exit_code, INTERRUPTED]
    assert rows(ERRORS, "Exit codes") == list(map(str, ends))


def test_the_table_of_options_has_every_option_of_a_rule() -> None:
    assert rows(RULES, "Every option of a rule") == list(inspect.signature(Rule).parameters)


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
