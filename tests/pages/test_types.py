"""The Python of the pages passes ``mypy --strict``: a reader who copies it gets no new errors."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from ..test_docs import PAGES, RUN_HERE, page_name
from .anchors import ROOT
from .blocks import blocks

pytestmark = pytest.mark.all

# Pages await outside of functions, as tests/test_docs.py runs them; it also finds errors of syntax.
# Errors of what they import are the business of other checks.
OPTIONS: Final = (
    *("--strict", "--follow-imports=silent"),
    *("--disable-error-code=top-level-await", "--disable-error-code=syntax"),
)


OF_OTHERS: Final = ROOT / "docs" / "how_to" / "other_frameworks.md"
"""Frameworks whose types of ASGI differ from Starlette's, or that have none."""


def modules_of(page: Path) -> dict[str, str]:
    """Return the modules that the Python of a page makes: a single one, or the files that its reader saves."""
    modules: dict[str, str] = {}
    for block in blocks(page.read_text("utf-8")):
        if block.language == "python":
            saved = block.mark == "file" and page not in RUN_HERE
            before = "" if saved else modules.get("page.py", "")
            # As many empty lines as the page has above the block, so that mypy names the lines of the page.
            empty = "\n" * (block.line - before.count("\n"))
            modules[block.value if saved else "page.py"] = before + empty + block.code
    return modules


def test_the_python_of_every_page_passes_mypy_strict(tmp_path: Path) -> None:
    packages = []
    for page in PAGES:
        if page != OF_OTHERS and (modules := modules_of(page)):
            # A package of its own: several pages have a `main.py`.
            packages.append(re.sub(r"\W", "_", page_name(page)))
            siblings = "|".join(Path(name).stem for name in modules)
            (tmp_path / packages[-1]).mkdir()
            for name, code in {**modules, "__init__.py": ""}.items():
                code = re.sub(rf"^from (?=(?:{siblings}) import )", "from .", code, flags=re.MULTILINE)
                (tmp_path / packages[-1] / name).write_text(code, encoding="utf-8")
    command = (sys.executable, "-m", "mypy", *OPTIONS, f"--cache-dir={tmp_path / '.cache'}", *packages)
    environment = {**os.environ, "MYPYPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert ended.returncode in (0, 1), ended.stderr
    errors = [line for line in ended.stdout.splitlines() if ": error: " in line]
    assert not errors, "\n".join(errors)
