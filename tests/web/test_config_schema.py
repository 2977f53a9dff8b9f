"""The JSON Schema for editors says what the validator says."""

import json
import re
import tomllib
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scripts import make_configuration
from scripts.make_configuration import json_schema
from slidegate import ConfigurationError, RateLimitMiddleware, Rule, everyone

from ..asgi import hello
from .test_config_errors import toml
from .test_messages import mistaken_files

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = jsonschema.Draft202012Validator(json_schema())
FILES = sorted(path for path in (ROOT / "examples").rglob("*.toml"))


def accepts(document: dict[str, Any]) -> bool:
    return SCHEMA.is_valid(document)


def parsed(text: str | bytes) -> dict[str, Any] | None:
    """Return a document, None if it is no TOML, or if it has a number that cannot be shown."""
    with suppress(ValueError, RecursionError):
        document = tomllib.loads(text if isinstance(text, str) else text.decode())
        return document if repr(document) else None  # jsonschema shows what it refuses
    return None


def shown() -> list[str]:
    """Return the configuration files that the page shows."""
    page = (ROOT / "docs" / "guides" / "configuration.md").read_text("utf-8")
    return re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_committed_schema_and_page_are_those_that_the_definitions_make() -> None:
    assert make_configuration.main(["--check"]) == 0, "run python scripts/make_configuration.py"


@pytest.mark.parametrize("text", [*shown(), *(path.read_text("utf-8") for path in FILES)])
def test_what_is_shown_is_accepted(text: str) -> None:
    assert accepts(tomllib.loads(text))


@pytest.mark.parametrize("document", [found for text in mistaken_files() if (found := parsed(text)) is not None])
def test_what_the_editor_accepts_is_wrong_by_the_meaning_of_a_value(document: dict[str, Any], tmp_path: Path) -> None:
    """A wrong type, an unknown key, and keys that exclude each other, the editor shows."""
    said = mistake(document, tmp_path)
    about_shape = re.compile("unknown option|not an option|is missing|expected (a table|True or False|one of header)")
    assert not accepts(document) or not about_shape.search(said), said


def mistake(document: dict[str, Any], directory: Path) -> str:
    """Return the error about a document, or an empty text."""
    path = directory / "slidegate.toml"
    path.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in document.items()), "utf-8")
    try:
        RateLimitMiddleware.from_file(hello, path)
    except ConfigurationError as error:
        return str(error)
    return ""


GIVEN: dict[str, tuple[Any, Any]] = {
    "limits": ("9/minute", "9/minute"),
    "concurrency": (4, 4),
    "key": ("everyone", everyone),
    "cost": (2, 2),
    "count_if": ([401], lambda status: status == 401),
    "count_denied": (True, True),
    "wait": ("1s", "1s"),
    "final": (True, True),
    "exempt": (True, True),
    "block": (True, True),
    "status": (404, 404),
    "shadow": (True, True),
}


@pytest.mark.parametrize("options", list(combinations(GIVEN, 3)), ids="-".join)
def test_schema_file_and_code_agree_about_options_that_exclude_each_other(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """All of three options, so that one may bring what another one needs."""
    table = {"path": "/a"} | {option: GIVEN[option][0] for option in options}
    try:
        Rule("/a", **{option: GIVEN[option][1] for option in options})
        fine = True
    except ConfigurationError as error:
        fine = "expected limits" in str(error)  # what is missing is the code's to say
    assert accepts({"rules": [table]}) is fine
    assert fine or mistake({"rules": [table]}, tmp_path)


def test_an_option_that_says_nothing_excludes_nothing(tmp_path: Path) -> None:
    nothing = {"exempt": False, "block": False, "shadow": False, "final": False, "cost": 1}
    table = {"path": "/a", "limits": "9/minute", "key": "client", "count_denied": False, **nothing}
    assert accepts({"rules": [table]})
    assert not mistake({"rules": [table]}, tmp_path)
    assert accepts({"rules": [{"path": "/a", "exempt": True, "key": "client", "cost": 1}]})


def test_every_key_says_in_the_editor_what_it_is() -> None:
    schema = json_schema()
    tables = [schema, *schema["$defs"].values()]
    silent = [name for table in tables for name, key in table["properties"].items() if "description" not in key]
    assert silent == []
    assert json.dumps(schema).count("null") == 0
    jsonschema.Draft202012Validator.check_schema(schema)
