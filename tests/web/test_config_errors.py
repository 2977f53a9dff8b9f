"""A mistake in the configuration file or the environment is reported with its key or its variable, and no other."""

from __future__ import annotations

import json
import re
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scripts.make_configuration import json_schema
from slidegate import ConfigurationError, RateLimitMiddleware

from ..asgi import hello
from .test_messages import FILE_MESSAGES

RULE = {"path": "/a/{id}", "limits": "5/minute"}
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "Configuration": ("", {"default_limits": "5/minute"}),
    "Client": ("client", {"limits": "5/minute", "client": {}}),
    "Rule": ("rules[0]", {"rules": [RULE]}),
    "Quota": ("rules[0].limits", {"rules": [RULE | {"limits": {"quota": "5/day"}}]}),
    "Key": ("rules[0].key", {"rules": [RULE | {"key": {}}]}),
    "Condition": ("rules[0].when", {"rules": [RULE | {"when": {}}]}),
    "Ban": ("bans.s", {"limits": "5/minute", "bans": {"s": {}}}),
    "Messages": ("messages", {"limits": "5/minute", "messages": {"limits": "1/second"}}),
    "Environment": ("store", {"limits": "5/minute", "store": {}}),
}
"""Each table of the file: where it stands, in a document that is right without the key that a test adds."""

ANY_VALUE = {
    "Configuration": {"client", "bans", "messages", "enabled", "key", "name"},
    "Rule": {"when", "count_denied", "final"},
    "Ban": {"shadow", "ban_private"},
    "Environment": {"env"},
}
"""Keys of which every value of the right type can work, or which are tables of their own."""
SCHEMA = json_schema()
KEYS = [
    (table, key)
    for table, schema in {"Configuration": SCHEMA, **SCHEMA["$defs"]}.items()
    for key in schema["properties"]
]


def toml(value: object) -> str:
    """Write a value as it stands in a file."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def with_keys(table: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Return a document in which a table has these keys too, and not those that are None."""
    path, document = TABLES[table]
    document = json.loads(json.dumps(document))
    place: Any = document
    for part in re.findall(r"[a-z]+|\d+", path):
        place = place[int(part) if part.isdigit() else part]
    place.update(keys)
    for key in [key for key, value in place.items() if value is None]:
        del place[key]
    return document


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "slidegate.toml"


def reported(file: Path, document: dict[str, Any], **code: Any) -> str:
    """Return what is said about a document, without the name of the file before it."""
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in document.items()), "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        RateLimitMiddleware.from_file(hello, file, **code)
    return str(caught.value).removeprefix(f"{file}: ")


def test_a_value_that_cannot_work_is_reported_with_its_key() -> None:
    """The messages that are compared whole have one at least for each key."""
    said = FILE_MESSAGES.read_text("utf-8")
    for table, key in KEYS:
        place = re.escape(f"{TABLES[table][0]}.{key}".removeprefix("."))
        assert key in ANY_VALUE.get(table, ()) or re.search(rf"^slidegate\.toml: {place}(: |\[|\.)", said, re.MULTILINE)


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_a_value_of_another_type_is_reported_with_its_table_and_key(table: str, key: str, file: Path) -> None:
    path, _ = TABLES[table]
    said = reported(file, with_keys(table, {key: -1.5}))
    assert said.startswith(path)
    assert re.search(rf"\b{key}\b", said)
    assert len(said.splitlines()) == 1


VARIABLES = {
    "SLIDEGATE_STORE": ("memory://?max_keys=9", "nosuch://user:secret@db"),
    "SLIDEGATE_SECRET": ("s" * 32, "short"),
    "SLIDEGATE_ENABLED": ("1", "perhaps"),
    "MY_STORE": ("memory://", "lmdb://user:secret@/a"),
}
"""Each variable, with a right and a wrong value."""


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_wrong_variable_is_reported_and_no_other(variable: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (right, wrong) in VARIABLES.items():
        monkeypatch.setenv(name, wrong if name == variable else right)
    document: dict[str, Any] = {"limits": "5/minute", "deadline": "1s"}
    if variable != "SLIDEGATE_STORE":  # which is not read beside it
        document["store"] = {"env": "MY_STORE"}
    said = reported(file, document)
    assert said.removeprefix("the environment variable ").startswith(f"{variable}: ")
    assert [name for name in VARIABLES if name in said] == [variable]
    assert "secret@" not in said
    assert "short" not in said


@pytest.mark.parametrize("address", ["memory://", "nosuch://"])
def test_a_wrong_secret_is_reported_before_a_store_is_opened(
    address: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEGATE_SECRET", "short")
    for document, code in (({"store": address}, {}), ({}, {"store": address})):
        said = reported(file, {"limits": "5/minute", **document}, **code)
        assert said == "SLIDEGATE_SECRET: expected 16 to 64 bytes, for example from secrets.token_hex(32)"


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
    tmp_path: Path, place: tuple[str | int, ...], change: str, value: Any, other: tuple[str, str]
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
            table[other[1]] = old
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
