"""The page is small and whole, and asks no other place."""

from __future__ import annotations

import re
from pathlib import Path

from slidegate.admin.page_files import page_files

FILES = page_files()
SCRIPTS = {path: body.decode() for path, (body, kind) in FILES.items() if kind.startswith("text/javascript")}
PAGE = FILES["/"][0].decode()
MOST_BYTES = 150_000
NAMES_OF_XML = {"http://www.w3.org/2000/svg"}


def test_everything_together_stays_below_the_bound() -> None:
    assert sum(len(body) for body, _ in FILES.values()) < MOST_BYTES


def test_every_file_of_the_folder_is_served_under_one_name() -> None:
    folder = Path(__file__).parents[2] / "src" / "slidegate" / "admin" / "static"
    assert {path for path in FILES if path != "/"} == {
        f"/static/{path.name}" for path in folder.iterdir() if path.name != "index.html"
    }


def test_no_file_names_another_place() -> None:
    for body, _ in FILES.values():
        assert set(re.findall(r"""https?://[^\s"'`)]+""", body.decode())) <= NAMES_OF_XML
        assert not re.search(r"""(?:src|href|from|import)\s*=?\s*["'(]//""", body.decode())


def test_everything_that_the_page_and_its_scripts_load_is_there() -> None:
    asked = {f"/{name}" for name in re.findall(r'(?:src|href)="(?!#)([^"]+)"', PAGE)}
    for text in SCRIPTS.values():
        asked |= {f"/static/{name}" for name in re.findall(r'from "\./([\w.]+)"', text)}
    assert asked == set(FILES) - {"/"}


def test_a_stranger_learns_no_version() -> None:
    for body, _ in FILES.values():
        assert not re.search(r"\b\d+\.\d+\.\d+\b", re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "", body.decode()))
