"""A file with any mistake is read or refused with its place; file_messages.txt has an example for each key."""

import json
import re
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.make_configuration import json_schema
from slidegate import ConfigurationError, RateLimitMiddleware

from ..asgi import hello
from .test_messages import FILE_MESSAGES

SCHEMA = json_schema()
KEYS = sorted({key for table in (SCHEMA, *SCHEMA["$defs"].values()) for key in table["properties"]})


def toml(value: object) -> str:
    """Write a value as it stands in a file."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def test_every_key_has_a_message_for_a_value_that_cannot_work() -> None:
    said = FILE_MESSAGES.read_text("utf-8")
    keys = [*KEYS]
    assert [key for key in keys if not re.search(rf"^slidegate\.toml: \S*\b{key}\b", said, re.MULTILINE)] == []


# -- files with any mistake --------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WHOLE = tomllib.loads((EXAMPLES / "slidegate.toml").read_text("utf-8"))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(["client", "5/minute", "*", "/a", "1h"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all values in a document."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, one in items for inner in places(one, (*path, key)))][not path :]


@given(st.sampled_from(places(WHOLE)), st.sampled_from(["replace", "delete", "rename"]), values, st.sampled_from(KEYS))
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_with_one_change_is_read_or_refused_with_its_place(
    tmp_path: Path, place: tuple[str | int, ...], change: str, value: Any, other: str
) -> None:
    document = deepcopy(WHOLE)
    table: Any = document
    for part in place[:-1]:
        table = table[part]
    if change == "replace":
        table[place[-1]] = value
    else:
        old = table.pop(place[-1])
        if change == "rename" and isinstance(table, dict):
            table[other] = old
    (tmp_path / "demo").mkdir(exist_ok=True)
    (tmp_path / "demo" / "blocked.netset").write_text("192.0.2.0/24\n", "utf-8")
    path = tmp_path / "slidegate.toml"
    path.write_text("".join(f"{json.dumps(key)} = {toml(one)}\n" for key, one in document.items()), "utf-8")
    said = refusal(path)
    known = "|".join(SCHEMA["properties"])
    place_of_it = rf"({known})\b|unknown option |not TOML: |expected limits"
    assert not said or re.fullmatch(rf"{re.escape(str(path))}: ({place_of_it})[^\n]*", said), said


def refusal(path: Path) -> str:
    """Return the error about a file; empty if it is read."""
    try:
        RateLimitMiddleware.from_file(hello, path)
    except ConfigurationError as error:
        return str(error)
    return ""


@given(st.integers(0, (EXAMPLES / "slidegate.toml").stat().st_size), st.binary(max_size=8), st.integers(0, 40))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_with_other_bytes_is_read_or_refused(tmp_path: Path, at: int, written: bytes, cut: int) -> None:
    content = (EXAMPLES / "slidegate.toml").read_bytes().replace(b"demo/blocked.netset", b"blocked.netset")
    (tmp_path / "blocked.netset").write_text("192.0.2.0/24\n", "utf-8")
    path = tmp_path / "slidegate.toml"
    path.write_bytes(content[:at] + written + content[at + cut :])
    said = refusal(path)
    assert not said or str(path) in said
