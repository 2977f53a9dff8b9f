"""What has a name in an error, an answer or an exit has its heading, and every printed link leads to one."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import slidegate
import slidegate.httpx
from slidegate import Finding, Reason
from slidegate.ops.command import exits
from slidegate.ops.command.doctor.diagnosis import SUBJECTS, diagnosed
from slidegate.web.findings.codes import CODES

from .anchors import ROOT, anchors, leads_somewhere

FINDINGS = ROOT / "docs" / "reference" / "findings.md"
ERRORS = ROOT / "docs" / "reference" / "errors.md"
SOURCE = ROOT / "src" / "slidegate"
PAGE = re.compile(r"docs/[\w/]+\.md(?:#[\w-]+)?")


def headings(page: Path, group: str) -> list[str]:
    """Return the headings of the third level below one of the second."""
    section = page.read_text("utf-8").partition(f"\n## {group}\n")[2].partition("\n## ")[0]
    return re.findall(r"^### (.+)$", section, re.MULTILINE)


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) of the sections of the third level."""
    parts = re.split(r"^#{2,3} (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True)


def exceptions() -> set[str]:
    """Return the names of the public exceptions."""
    return {
        name
        for module in (slidegate, slidegate.httpx)
        for name in module.__all__
        if inspect.isclass(found := getattr(module, name)) and issubclass(found, BaseException)
    }


def codes_of_tools() -> set[str]:
    """Return the codes that operators' tools answer: the word beside a status, in a refusal or in a constant."""
    found: set[str] = set()
    for path in (SOURCE / "ops" / "access").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            refused = isinstance(node, ast.Call) and ast.unparse(node.func) == "Refused"
            parts = node.args if refused else node.elts if isinstance(node, ast.Tuple) else []
            match parts[:2]:
                case [ast.Constant(value=int()), ast.Constant(value=str(word))] if word:
                    found.add(word)
    return found


def types_of_problems() -> set[str]:
    """Return the types that refusals have."""
    text = (SOURCE / "web" / "answers" / "refusals.py").read_text("utf-8")
    return set(re.findall(r"\{_TYPES\}([\w-]+)", text)) | set(re.findall(r'"type": "([\w:]+)"', text))


def exit_codes() -> set[int]:
    """Return the numbers that the command ends with."""
    return {found for name, found in vars(exits).items() if type(found) is int and not name.startswith("MOST_")}


def test_every_finding_has_its_heading_in_order() -> None:
    assert headings(FINDINGS, "What the gate finds") == list(CODES)
    assert headings(FINDINGS, "What slidegate check finds") == list(SUBJECTS)
    assert not set(SUBJECTS) & set(CODES)


def test_every_exception_reason_type_and_code_has_its_heading() -> None:
    assert len(exceptions()) > 8
    assert set(headings(ERRORS, "Exceptions")) == exceptions()
    assert headings(ERRORS, "Reasons") == [f"Reason {reason}" for reason in Reason]
    assert len(types_of_problems()) > 3
    assert set(headings(ERRORS, "Problem types")) == {f"Type {name}" for name in types_of_problems()}
    assert len(codes_of_tools()) > 10
    assert set(headings(ERRORS, "Codes of operators' tools")) == {f"Code {code}" for code in codes_of_tools()}
    assert headings(ERRORS, "Exit codes") == [f"Exit code {code}" for code in sorted(exit_codes())]


@pytest.mark.parametrize("page", [FINDINGS, ERRORS], ids=lambda page: page.stem)
def test_every_section_says_something(page: Path) -> None:
    found = dict(sections(page))
    assert len(found) > 25
    # A meaning and a way out take more than one sentence, but for exits that need nothing to be done.
    short = [name for name, text in found.items() if text.count(". ") + text.count(".\n") + text.endswith(".") < 1]
    assert short == []
    assert [name for name, text in found.items() if len(text) < 40 and not name.startswith("Exit code 0")] == []


@pytest.mark.parametrize("code", CODES)
def test_the_link_of_a_finding_leads_to_its_heading(code: str) -> None:
    page, _, anchor = Finding(code, "").link.partition("#")
    assert anchor in anchors(ROOT / page)


@pytest.mark.parametrize("code", SUBJECTS)
def test_the_link_of_a_finding_of_check_leads_to_its_heading(code: str) -> None:
    page, _, anchor = diagnosed(code, "").link.partition("#")
    assert anchor in anchors(ROOT / page)


def test_every_page_that_the_source_names_is_there() -> None:
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for room in ("src", "examples", "scripts", "requirements")
        for path in (ROOT / room).rglob("*")
        if path.suffix in {".py", ".toml", ".lua", ".js", ".html", ".in", ".yml"}
        for page in PAGE.findall(path.read_text("utf-8"))
    }
    assert len(named) > 5
    assert {(path, page) for path, page in named if not leads_somewhere(ROOT / "README.md", page)} == set()
