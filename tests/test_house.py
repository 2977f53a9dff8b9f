"""What holds for the checkout as a whole: its version, its links, and no address of an index."""

import os
import re
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import slidegate
from dev import PYTHONS

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Spelt so that this file does not find itself.
FORBIDDEN = {
    "package index": re.compile(r"pypi[.]org|pythonhosted[.]org|npmjs[.]|--(?:extra-)?index[-]url|--find[-]links"),
    "path of one machine": re.compile(r"(?<![\w.>])/(?:home|root|work|Users)/\w"),
}


FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
ELEMENTS = {"checkboxes": "options", "dropdown": "options", "input": "label", "markdown": "value", "textarea": "label"}
"""What the elements of a form must have."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file of the checkout, those without text left out."""
    lines = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    ignored = {".git", *(line.strip("/") for line in lines if line.endswith("/"))}
    for directory, below, files in os.walk(ROOT):
        below[:] = [name for name in below if name not in ignored]
        # In a worktree of git, .git is a file.
        for path in (Path(directory, file) for file in files if file != ".git"):
            if b"\0" not in path.read_bytes()[:8192]:
                yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8", "replace")


def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    found = {(path, what) for path, text in texts() for what, one in FORBIDDEN.items() if one.search(text)}
    assert found == set()
    assert {"dev.py", "README.md", ".ci/run", "requirements/develop.txt"} <= {path for path, _ in texts()}


@pytest.mark.parametrize("path", [path for path in sorted(FORMS.glob("*.yml")) if path.stem != "config"])
def test_every_form_of_an_issue_has_what_a_form_must_have(path: Path) -> None:
    """A form with a mistake is not shown, without a word."""
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "body"} <= {*form}
    ids = [element["id"] for element in form["body"] if element["type"] != "markdown"]
    assert len({*ids}) == len(ids) > 0
    assert all(re.fullmatch(r"[\w-]+", one) for one in ids)
    assert [one for one in form["body"] if not one["attributes"].get(ELEMENTS[one["type"]])] == []


def test_the_version_stands_in_one_place_and_is_that_of_the_changelog() -> None:
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest, "CHANGELOG.md has no heading such as `## 0.1.0`"
    assert "version" not in PROJECT
    assert "version" in PROJECT["dynamic"]
    metadata = ProjectMetadata(str(ROOT), PluginManager(), deepcopy(PYPROJECT))
    assert metadata.version == slidegate.__version__ == newest[1]


def test_every_link_and_picture_of_the_readme_leads_to_a_file_from_an_index() -> None:
    metadata = ProjectMetadata(str(ROOT), PluginManager(), deepcopy(PYPROJECT))
    page, repository, tag = metadata.core.readme, PROJECT["urls"]["Repository"], f"v{slidegate.__version__}"
    targets = re.findall(r"""(?:\]\(|\b(?:src|srcset|href)=")([^)"\s]+)""", page)
    shown = [target for target in targets if not target.startswith(("#", f"{repository}/"))]
    assert [target for target in shown if not target.startswith("https://")] == []
    files = {target.removeprefix(f"{repository}/").partition("#")[0] for target in targets if repository in target}
    pictures = {name for name in files if name.startswith(f"raw/{tag}/")}
    assert pictures
    assert files - pictures
    names = {name.removeprefix(f"raw/{tag}/").removeprefix(f"blob/{tag}/") for name in files}
    assert [name for name in names if not (ROOT / name).is_file()] == []
    assert all(name.endswith((".png", ".svg")) for name in pictures)


def test_every_place_that_names_the_supported_pythons_names_the_same() -> None:
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", one)]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))["jobs"]
    skips = (ROOT / "tests" / "skips.txt").read_text("utf-8")
    badge = (ROOT / "README.md").read_text("utf-8")
    versions = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    assert list(PYTHONS) == named == jobs["test"]["strategy"]["matrix"]["python"]
    free_threaded = jobs["free-threaded"]["strategy"]["matrix"]["python"]
    assert sorted([*named, *free_threaded]) == re.findall(r"^(3\.\S+) ", skips, re.MULTILINE)
    assert PYPROJECT["tool"]["cibuildwheel"]["build"] == [f"cp{name.replace('.', '')}-*" for name in named]
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert f"[![Python {named[0]} to {named[-1]}]" in badge
    assert f"| CPython | {named[0]} | {named[-1]} |" in versions


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit_and_says_its_version(path: Path) -> None:
    used = re.findall(r"^\s*(?:- )?uses: (.+)$", path.read_text("utf-8"), re.MULTILINE)
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+(?:\.\d+)+|\./\.github/workflows/\w+\.yml .*")
    assert [action for action in used if not pinned.fullmatch(action)] == []
    assert used


def test_the_gate_needs_every_job_of_each_run() -> None:
    """A job that is skipped counts as passed where branch protection names it, so only the gate may be named there."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))["jobs"]
    gate = jobs.pop("gate")
    assert gate["if"] == "always()"
    assert gate["needs"] == [name for name, job in jobs.items() if "if" not in job]
    assert len(gate["needs"]) > 3
