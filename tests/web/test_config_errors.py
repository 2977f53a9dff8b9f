"""A mistake in the configuration file or the environment is reported with its key or its variable, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, RateLimitMiddleware
from slidegate.web.config_schema import json_schema

from ..asgi import hello
from .test_networks import ASN, written

RULE = {"path": "/a/{id}", "limits": "5/minute"}
TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "Configuration": ("", {"default_limits": "5/minute"}),
    "Client": ("client", {"limits": "5/minute", "client": {}}),
    "RuleTable": ("rules[0]", {"rules": [RULE]}),
    "QuotaTable": ("rules[0].limits", {"rules": [RULE | {"limits": {"quota": "5/day"}}]}),
    "KeyTable": ("rules[0].key", {"rules": [RULE | {"key": {}}]}),
    "ConditionTable": ("rules[0].when", {"rules": [RULE | {"when": {}}]}),
    "ListTable": ("blocklist", {"limits": "5/minute", "blocklist": {"path": "blocked.netset"}}),
    "BanTable": ("bans.s", {"limits": "5/minute", "bans": {"s": {}}}),
    "MessageTable": ("messages", {"limits": "5/minute", "messages": {"limits": "1/second"}}),
    "Environment": ("store", {"limits": "5/minute", "store": {}}),
}
"""Each table of the file: where it stands, in a document that is right without the key that a test adds."""

PARAMETER = {"path_param": "id"}
WRONG: list[tuple[str, str, object, dict[str, Any]]] = [
    ("Configuration", "limits", "5/minut", {}),
    ("Configuration", "limits", "5/minute", {"rules": [RULE]}),
    ("Configuration", "rules", [RULE, RULE], {}),
    ("Configuration", "default_limits", "5/minut", {}),
    ("Configuration", "default_limits", "nobody", {}),
    ("Configuration", "blocklist", "missing.netset", {}),
    ("Configuration", "blocklist", ["192.0.2.1/24"], {}),
    ("Configuration", "blocklist", "everybody.netset", {}),
    ("Configuration", "allowlist", ["0.0.0.0/0"], {}),
    ("Configuration", "store", "nosuch://", {}),
    ("Configuration", "store", "memory://?max_keys=0", {}),
    ("Configuration", "store", "memory://?deadline=1", {}),
    ("Configuration", "store", "lmdb:///missing/missing/missing", {}),
    ("Configuration", "store", "redis://localhost?permit_lease=x", {}),
    ("Configuration", "store", {"env": "UNSET"}, {}),
    ("Configuration", "deadline", "0s", {}),
    ("Configuration", "deadline", "0s", {"store": "nosuch://"}),
    ("Configuration", "on_error", "ignore", {}),
    ("Configuration", "networks", ["missing.mmdb"], {}),
    ("Configuration", "headers", "all", {}),
    ("Configuration", "ignore_checks", ["SG999"], {}),
    ("Client", "trusted", ["proxy"], {}),
    ("Client", "trusted", "missing.txt", {}),
    ("Client", "trusted", 65, {}),
    ("Client", "header", "a b", {}),
    ("Client", "ipv4_prefix", 4, {}),
    ("Client", "ipv6_prefix", 129, {}),
    ("RuleTable", "path", "a", {}),
    ("RuleTable", "path", ["/a", "/a"], {}),
    ("RuleTable", "path", "/a/{id:nosuch}", {}),
    ("RuleTable", "limits", "5/minut", {}),
    ("RuleTable", "limits", ["5/minute", "6/minute"], {}),
    ("RuleTable", "concurrency", 0, {}),
    ("RuleTable", "methods", ["G T"], {}),
    ("RuleTable", "connection", "tcp", {}),
    ("RuleTable", "key", {"path_param": "missing"}, {}),
    ("RuleTable", "key", "nobody", {}),
    ("RuleTable", "cost", 6, {}),
    ("RuleTable", "cost", 2**31, {}),
    ("RuleTable", "unit", "a:b", {}),
    ("RuleTable", "count_if", [], {}),
    ("RuleTable", "shadow", True, {"concurrency": 4}),
    ("RuleTable", "block", True, {}),
    ("RuleTable", "exempt", True, {}),
    ("RuleTable", "status", 404, {}),
    ("RuleTable", "status", 200, {"block": True}),
    ("RuleTable", "wait", "200 mx", {}),
    ("RuleTable", "wait_max", 0, {"wait": "1s"}),
    ("RuleTable", "fair", "user", {}),
    ("RuleTable", "fair", {"path_param": "missing"}, {"concurrency": 4, "wait": "1s"}),
    ("RuleTable", "on_error", "ignore", {}),
    ("RuleTable", "name", "a:b", {}),
    ("QuotaTable", "quota", "5/hour", {}),
    ("QuotaTable", "quota", "0/day", {}),
    ("QuotaTable", "zone", "Nowhere", {}),
    ("QuotaTable", "starts", "sunday", {}),
    ("QuotaTable", "name", "a:b", {}),
    ("KeyTable", "header", "a b", {}),
    ("KeyTable", "cookie", "a b", {}),
    ("KeyTable", "query", "", {}),
    ("KeyTable", "path_param", "", {}),
    ("KeyTable", "client", "user", {}),
    ("KeyTable", "combine", ["client"], {}),
    ("KeyTable", "fallback", "user", {"mcp_tool": ["a"]}),
    ("KeyTable", "mcp_tool", ["*"], {}),
    ("KeyTable", "validated", True, {"header": "a"}),
    ("KeyTable", "network", "missing.mmdb", {}),
    ("KeyTable", "by", "asn", {"header": "a"}),
    ("KeyTable", "by", "country", {"network": "asn.mmdb"}),
    ("ConditionTable", "mcp_tool", ["*"], {"validated": True, "is_in": ["a"]}),
    ("ConditionTable", "validated", False, {"mcp_tool": ["a"], "is_in": ["a"]}),
    ("ConditionTable", "validated", True, {"network": "asn.mmdb", "is_in": ["NL"]}),
    ("ConditionTable", "network", "missing.mmdb", {"is_in": ["NL"]}),
    ("ConditionTable", "is_in", ["b"], {"mcp_tool": ["a"], "validated": True}),
    ("ConditionTable", "is_in", ["Belgium"], {"network": "asn.mmdb"}),
    ("ConditionTable", "is_in", ["NL"], {"network": "asn.mmdb"}),
    ("ConditionTable", "is_method", ["a"], {"network": "asn.mmdb"}),
    ("ConditionTable", "is_method", [""], {"mcp_tool": ["a"], "validated": True}),
    ("ListTable", "path", "missing.netset", {}),
    ("ListTable", "path", "everybody.netset", {}),
    ("BanTable", "after", "5/minut", {}),
    ("BanTable", "after", "5/s; 6/minute", {}),
    ("BanTable", "duration", "1 x", {}),
    ("BanTable", "factor", 1.000001, {}),
    ("BanTable", "longest", "1s", {}),
    ("BanTable", "forgive", "never", {}),
    ("BanTable", "signals", {"refusd": 1}, {}),
    ("BanTable", "signals", {"/a/*": 1}, {}),
    ("BanTable", "key", PARAMETER, {}),
    ("BanTable", "status", 500, {}),
    ("MessageTable", "limits", "5/minut", {}),
]
"""Values of the right type that cannot work: table, key and value, and what stands beside them."""
ANY_VALUE = {
    "Configuration": {"client", "bans", "messages", "enabled"},
    "Client": {"trust_all"},
    "RuleTable": {"when", "count_denied", "final"},
    "ListTable": {"name", "strict"},
    "BanTable": {"shadow", "ban_private"},
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
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def with_keys(table: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Return a document in which a table has these keys too."""
    path, document = TABLES[table]
    document = json.loads(json.dumps(document))
    place: Any = document
    for part in re.findall(r"[a-z]+|\d+", path):
        place = place[int(part) if part.isdigit() else part]
    place.update(keys)
    return document


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "blocked.netset").write_text("192.0.2.0/24\n", "utf-8")
    (tmp_path / "everybody.netset").write_text("0.0.0.0/1\n128.0.0.0/1\n", "utf-8")
    written(tmp_path / "asn.mmdb", ASN)
    return tmp_path / "slidegate.toml"


def reported(file: Path, document: dict[str, Any], **code: Any) -> str:
    """Return what is said about a document, without the name of the file before it."""
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in document.items()), "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        RateLimitMiddleware.from_file(hello, file, **code)
    return str(caught.value).removeprefix(f"{file}: ")


def test_a_wrong_value_is_tried_for_each_key() -> None:
    tried = {(table, key) for table, key, _, _ in WRONG}
    assert tried | {(table, key) for table, keys in ANY_VALUE.items() for key in keys} == set(KEYS)


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_a_value_of_another_type_is_reported_with_its_key(table: str, key: str, file: Path) -> None:
    path, _ = TABLES[table]
    said = reported(file, with_keys(table, {key: -1.5}))
    assert said.splitlines()[0].startswith(f"{path}.{key}: ".removeprefix("."))
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("table", "key", "value", "beside"), WRONG)
def test_a_value_that_cannot_work_is_reported_with_its_key(
    table: str, key: str, value: object, beside: dict[str, Any], file: Path
) -> None:
    path, _ = TABLES[table]
    said = reported(file, with_keys(table, {key: value, **beside}))
    assert re.match(re.escape(f"{path}.{key}".removeprefix(".")) + r"(: |\[|\.)", said), said
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
