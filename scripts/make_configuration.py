"""Generates the JSON Schema of the configuration file, and the tables of its keys, from the signatures in the library.

Run ``python -m scripts.make_configuration``. With ``--check`` it changes nothing, and exits with 1 if a generated file
is outdated. A table of the file is the keyword arguments of a class or function: types come from its annotations,
descriptions from its docstring. On the page, a table with a line for each key stands below
``<!-- keys of NAME -->``. Kinds of tables are called like the section about them.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from slidegate import BanPolicy, Limiter, MessageLimits, Networks, Quota, RateLimitMiddleware, Rule, client_ip
from slidegate.files import config
from slidegate.web.rules import EXCLUSIONS, NEEDS

ROOT: Final = Path(__file__).resolve().parents[1]
SCHEMA: Final = ROOT / "docs" / "slidegate.schema.json"
PAGE: Final = ROOT / "docs" / "reference" / "configuration.md"
KEYS: Final = re.compile(r"(?P<head><!-- keys of (?P<name>[\w ]+) -->\n\n).*?(?=\n\n|\n\Z)", re.DOTALL)
TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
TEXT: Final = {"type": "string"}
NAME: Final = {**TEXT, "minLength": 1}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def list_of(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": schema, **more}


def table_of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, **more}


KEY: Final = any_of({"enum": ["client", "everyone", "user"]}, ref("Keys"))
LIMITS: Final = any_of(TEXT, ref("Quotas"), list_of(any_of(TEXT, ref("Quotas")), minItems=1))
LIST: Final = any_of(TEXT, list_of(TEXT), ref("Lists"))
WRITTEN: Final[Mapping[str, dict[str, Any]]] = {
    **dict.fromkeys(("limits", "default_limits"), LIMITS),
    "fair": KEY,
    "key": {**KEY, "default": "client"},
    **dict.fromkeys(("blocklist", "allowlist"), LIST),
    "when": ref("Conditions"),
    "count_if": list_of({"type": "integer", "minimum": 100, "maximum": 599}, minItems=1),
    "rules": list_of(ref("Rules")),
    "bans": {"type": "object", "additionalProperties": ref("Bans")},
    "client": ref("Client"),
    "messages": ref("Messages"),
    "store": NAME,
    "networks": any_of(TEXT, list_of(TEXT)),
    "headers": any_of({"enum": ["draft", "legacy", "none"]}, list_of({"enum": ["draft", "legacy"]}, minItems=1)),
    "trusted": any_of(TEXT, list_of(TEXT), {"type": "integer"}),
    "path": any_of(TEXT, list_of(TEXT, minItems=1)),
    "combine": list_of(KEY, minItems=2),
    "mcp_tool": list_of(TEXT, minItems=1),
    "is_in": list_of(any_of(TEXT, {"type": "integer"}), minItems=1),
}
"""What is written differently in a file than in code."""
TOP: Final = {
    "client": "Who the client is: the default key of rules, and what lists are compared with.",
    "limits": 'Short for a rule for "*": "100/minute".',
    "rules": "Which requests have which limits.",
    "default_limits": "Limits of each route by itself, beside the rules.",
    "name": "Stands in front of the names of its rules, so that those of other middlewares count apart.",
    "headers": "Which RateLimit header fields are sent.",
    "bans": "Ban policies by name.",
    "messages": "The limits of messages over a websocket.",
    "key": "What rules without a key, limits and default_limits count by.",
    "store": 'The address of the store, such as "memory://".',
    "networks": 'Files of operators, for bans such as "asn:64500".',
}
SOURCES: Final = {
    "header": 'Each value of a request header, such as "X-API-Key".',
    "cookie": "Each value of a cookie.",
    "query": "Each value of a query parameter.",
    "path_param": "Each value of a parameter of the rule's path.",
    "client": "Each client address, with its own options.",
    "combine": 'Each combination of several keys, such as ["client", { header = "X-Tenant" }].',
    "mcp_tool": 'Each of these tools of an MCP server, such as ["search", "export"].',
    "network": 'Each operator or country, from a file beside this one such as "GeoLite2-ASN.mmdb".',
    "validated": "The server rejects requests whose header fields and body differ.",
    "by": 'What to count by if the file has both, "asn" or "country"; by default the operator.',
    "is_in": 'Some of the tools, such as ["export"]; or countries and operators, such as ["NL", 64500].',
}
"""The keys of the tables of keys and conditions, which are the names of functions and methods."""


def described(function: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentence about each argument in a docstring."""
    text = inspect.getdoc(function) or ""
    arguments = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\S|\Z)", arguments[1] if arguments else "", re.DOTALL | re.MULTILINE)
    plain = {name: re.sub(r"\s+", " ", told).strip().replace("`", "") for name, told in found}
    return {name: re.split(r"(?<=[\w\")])\. ", told)[0].rstrip(".") + "." for name, told in plain.items()}


def typed(annotation: Any) -> list[dict[str, Any]]:
    """Return the schemas of those forms of an argument that TOML has."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in TYPES:
        return [{"type": TYPES[annotation]}]
    if origin in (Union, UnionType):
        return [schema for one in inner for schema in typed(one)]
    if origin is Literal:
        return [{"enum": list(inner)}]
    if origin in (Iterable, Sequence):
        return [list_of(*typed(inner[0]))]
    if origin is Mapping:
        return [{"type": "object", "additionalProperties": one_of_forms(typed(inner[1]))}]
    return []


def one_of_forms(forms: list[dict[str, Any]]) -> dict[str, Any]:
    return forms[0] if len(forms) == 1 else any_of(*forms)


def table(function: Callable[..., Any], names: Iterable[str] | None = None, **renamed: str) -> dict[str, Any]:
    """Return the schema of a table that is the keyword arguments of a function.

    Args:
        function: The class or function.
        names: The keys; by default all arguments.
        **renamed: Arguments by their key, where they differ.
    """
    called: Any = inspect.unwrap(function.__init__ if isinstance(function, type) else function)
    hints, told = get_type_hints(called), described(function)
    parameters = {name: one for name, one in inspect.signature(called).parameters.items() if name in hints}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key in names or parameters:
        name = renamed.get(key, key)
        known = WRITTEN[key] if key in WRITTEN else one_of_forms(typed(hints[name]))
        properties[key] = {**known, "description": told[name]}
        default = parameters[name].default
        if default is inspect.Parameter.empty:
            required.append(key)
        elif default not in (None, ()):
            properties[key]["default"] = default
    return table_of(properties, required=required)


def named(ways: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[str, Any]:
    """Return the schema of a table of keys, whose keys are the names of functions.

    Args:
        ways: The combinations of keys: those that it must have, and those that it can have beside them.
    """
    names = dict.fromkeys([*chain(*(required for required, _ in ways)), *chain(*(beside for _, beside in ways))])
    own = {"validated": {"type": "boolean"}, "by": {"enum": ["asn", "country"]}, "network": NAME}
    properties = {name: {**own.get(name, WRITTEN.get(name, TEXT)), "description": SOURCES[name]} for name in names}
    one_of = []
    for required, beside in ways:
        others = [name for name in names if name not in (*required, *beside)]
        one_of.append({"required": required, "properties": dict.fromkeys(others, False)})
    return table_of(properties, oneOf=one_of)


def excluding(rule: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a rule with the options that exclude each other, and those that require another one."""
    known = rule["properties"]

    def without(key: str) -> Any:
        return {"const": known[key]["default"]} if "default" in known[key] else False

    def present(key: str) -> dict[str, Any]:
        return {"required": [key], "properties": {key: {"not": without(key)} if without(key) else True}}

    exclusions = [
        {"if": present(key), "then": {"properties": {other: without(other) for other in others}}}
        for key, others, _ in EXCLUSIONS
    ]
    return {**rule, "allOf": exclusions + [{"if": present(key), "then": present(needed)} for key, needed, _ in NEEDS]}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    bans = table(BanPolicy, [name for name in inspect.signature(BanPolicy).parameters if name != "name"])
    bans["properties"]["key"]["anyOf"] = [{"enum": ["client", "user"]}, ref("Keys")]  # a ban of everyone is an error
    rule = [name for name in inspect.signature(Rule).parameters if name not in config.OF_FUNCTIONS]
    files = table(Networks.from_file)
    files["properties"]["path"] |= NAME
    del files["properties"]["path"]["anyOf"]  # that of a rule may be several
    tables = {
        "Rules": excluding(table(Rule, rule)),
        "Bans": bans,
        "Client": table(client_ip),
        "Keys": named([([one], [*inspect.signature(make).parameters][1:]) for one, make in config.MAKERS.items()]),
        "Conditions": named([(["mcp_tool", "validated", "is_in"], []), (["network", "is_in"], [])]),
        "Quotas": table(Quota, ("quota", "zone", "starts", "name"), quota="text"),
        "Messages": table(MessageLimits),
        "Lists": files,
    }
    top = table(RateLimitMiddleware, [name for name in config.OPTIONS if name not in config.OF_LIMITER])
    limiter = table(Limiter, ("deadline", "on_error"))
    for name, told in TOP.items():
        top["properties"][name] = {**top["properties"].get(name, WRITTEN.get(name, {})), "description": told}
    top["properties"] |= limiter["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "slidegate.toml",
        **top,
        "not": {"required": ["limits", "rules"]},
        "$defs": tables,
    }


def keys_of(found: re.Match[str]) -> str:
    """Return the table of the page with a line for each key of a table of the file."""
    schema = json_schema()
    table = schema["$defs"].get(found["name"], schema)
    rows = [
        f"| `{key}`: {kinds(value)}{default(value)} | {value['description']} |"
        for key, value in table["properties"].items()
    ]
    return "\n".join([f"{found['head']}| key: value; default | meaning |", "|---|---|", *rows])


def kinds(value: dict[str, Any]) -> str:
    """Return the kinds of values that a key accepts."""
    *others, last = dict.fromkeys(filter(None, map(kind, [value, *value.get("anyOf", ())])))
    return ", ".join([*others, "list of these" if last == f"list of {', '.join(others)}" else last])


def kind(value: dict[str, Any]) -> str:
    """Return the kind of a schema; an empty string if it only lists alternatives."""
    if "$ref" in value:
        title = value["$ref"].rpartition("/")[2]
        return f"[{title}](#{title.lower()})"
    if "enum" in value:
        return ", ".join(f"`{json.dumps(one)}`" for one in value["enum"])
    if value.get("type") == "array":
        return f"list of {kinds(value['items'])}"
    if value.get("type") == "object":
        return f"table of {kinds(value['additionalProperties'])}"
    name = value.get("type", "").replace("string", "text")
    return f"{name} {value['minimum']} to {value['maximum']}" if "maximum" in value else name


def default(value: dict[str, Any]) -> str:
    """Return the default of a key as the page shows it."""
    return f"; `{json.dumps(value['default'])}`" if value.get("default") not in (None, {}, []) else ""


def main(arguments: list[str]) -> int:
    """Write the schema and the page; with ``--check``, compare them."""
    made = {SCHEMA: json.dumps(json_schema(), indent=2) + "\n", PAGE: KEYS.sub(keys_of, PAGE.read_text("utf-8"))}
    if arguments == ["--check"]:
        return int(any(path.read_text("utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
