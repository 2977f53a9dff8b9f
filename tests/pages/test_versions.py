"""The table of tested versions says what is declared and locked."""

from __future__ import annotations

import re
import tomllib

from .anchors import ROOT

PAGE = (ROOT / "docs" / "first_steps.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PACKAGES = {
    "Starlette": "starlette",
    "FastAPI": "fastapi",
    "anyio": "anyio",
    "redis-py": "redis",
    "LMDB (py-lmdb)": "lmdb",
}
"""The rows about packages of PyPI, and their names there."""


def shown() -> dict[str, tuple[str, str]]:
    """Return the rows of the table: the lowest and the newest version of each thing."""
    return {name: (lowest, newest) for name, lowest, newest in re.findall(r"^\| (.+) \| (.+) \| (.*)\|$", PAGE, re.M)}


def requirements(name: str) -> str:
    return (ROOT / "requirements" / name).read_text("utf-8")


def locked(package: str) -> str:
    """Return the version of a package in the environment of the tests."""
    (version,) = re.findall(rf"^{package}==(\S+)", requirements("develop.txt"), re.MULTILINE)
    return str(version)


def declared(package: str) -> set[str]:
    """Return the lowest versions of a package that the project or its tests of the lowest versions declare."""
    extras = [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    lines = [*PROJECT["dependencies"], *extras, *requirements("lowest.in").splitlines()]
    return {found[1] for one in lines if (found := re.match(rf"{package}(?:\[\w+\])?>=([\d.]+)", one))}


def test_packages_are_shown_with_the_versions_that_are_declared_and_locked() -> None:
    rows = shown()
    for title, package in PACKAGES.items():
        lowest, newest = rows[title]
        assert declared(package) == {lowest}, title
        assert locked(package) == newest.strip(), f"{title}: the page follows requirements/develop.txt"


def test_pythons_are_shown_as_they_are_declared() -> None:
    lowest, newest = shown()["CPython"]
    classified = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.", one)]
    assert PROJECT["requires-python"] == f">={lowest}"
    assert (classified[0], classified[-1]) == (lowest, newest.strip())
