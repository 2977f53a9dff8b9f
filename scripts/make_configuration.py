"""Generates the JSON Schema of the configuration file, and the tables of its keys, from the models that validate it.

Run ``python scripts/make_configuration.py`` in any directory. With ``--check`` it changes nothing, and exits with 1 if
a generated file is outdated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from slidegate.web.config_schema import json_schema

ROOT: Final = Path(__file__).resolve().parents[1]
SCHEMA: Final = ROOT / "docs" / "slidegate.schema.json"
PAGE: Final = ROOT / "docs" / "guides" / "configuration.md"
MADE: Final = "## Every key\n"
"""The heading on the page below which everything is generated."""


class Table(NamedTuple):
    """A table of the file: its heading on the page, its introduction, and whether the page explains each key."""

    title: str
    written: str
    explained: bool = True


TABLES: Final = {
    "": Table("The file", "Keys at the top of the file, before the first table."),
    "RuleTable": Table(
        "Rules",
        "Each rule is a table `[[rules]]` with [the options of `Rule`](rules.md#every-option-of-a-rule) that need no "
        'function. `key` and `fair` are `"client"`, `"everyone"`, `"user"` or [a table](#keys), `count_if` is a list '
        "of statuses, and `on_exceeded = true` calls the function of `from_file(..., on_exceeded=function)`.",
        explained=False,
    ),
    "BanTable": Table("Bans", "Each [policy](bans.md) is a table `[bans.NAME]`."),
    "Client": Table("Client", "The table `[client]`, and the table of a key that is `client`."),
    "KeyTable": Table(
        "Keys",
        "One of these, each named like its function: the name of a `header`, a `cookie`, a `query` parameter or a "
        "`path_param`; the [options](#client) of `client`; a list of keys to `combine`; a list of the tools of an MCP "
        "server (`mcp_tool`, with `validated`); a file of operators or countries (`network`, with `by`). `fallback` is "
        'the key where a value is missing. Examples: `{ header = "X-API-Key", fallback = "user" }`, '
        '`{ client = { ipv6_prefix = 48 } }`, `{ combine = ["client", { header = "X-Tenant" }] }`, '
        '`{ network = "GeoLite2-ASN.mmdb" }`.',
        explained=False,
    ),
    "ConditionTable": Table(
        "Conditions",
        "The `when` of a rule, of `mcp_tool` or `network` as in [a key](#keys): "
        '`{ network = "GeoLite2-Country.mmdb", is_in = ["NL"] }`, or '
        '`{ mcp_tool = ["export"], validated = true, is_in = ["export"] }`; `is_method` takes JSON-RPC methods.',
        explained=False,
    ),
    "QuotaTable": Table(
        "Quotas",
        "The arguments of [`Quota`](other_limits.md#quotas), in `limits`, alone or in a list: "
        '`limits = ["10/second", { quota = "10000/month", zone = "Europe/Berlin", starts = 15 }]`.',
        explained=False,
    ),
    "MessageTable": Table(
        "Messages",
        "The table `[messages]` has [the options of `MessageLimits`](other_limits.md#websockets).",
        explained=False,
    ),
    "ListTable": Table(
        "Lists",
        "In `blocklist` or `allowlist`, the arguments of [`Networks.from_file`](bans.md#block-and-allow-lists).",
        explained=False,
    ),
    "Environment": Table(
        "Environment", 'Instead of an address with a password: `{ env = "SLIDEGATE_STORE" }`.', explained=False
    ),
}
INTRODUCTION: Final = """
A link in the column "value" refers to such a table; a value after a semicolon is the default. Durations are text like
`"30s"`. Unknown keys and values of other types are errors. [examples/slidegate.toml](../../examples/slidegate.toml) has
every key.
"""


def main(arguments: list[str]) -> int:
    """Write the schema and the page; with ``--check``, compare them."""
    schema = json_schema()
    by_hand = PAGE.read_text("utf-8").partition(MADE)[0]
    page = "\n".join([by_hand + MADE + INTRODUCTION, *(section(name, schema) for name in TABLES)])
    made = {SCHEMA: json.dumps(schema, indent=2) + "\n", PAGE: page}
    if arguments == ["--check"]:
        return int(any(path.read_text("utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


def section(name: str, schema: dict[str, Any]) -> str:
    """Return the section of the page for one table."""
    found = schema["$defs"][name] if name else schema
    title, written, explained = TABLES[name]
    if not explained:
        keys = ", ".join(f"`{key}`" for key in found["properties"])
        return f"### {title}\n\nKeys: {keys}.\n\n{written}\n"
    lines = [f"### {title}", "", written, ""]
    lines += ["| key | value | meaning |", "| --- | --- | --- |"]
    for key, value in found["properties"].items():
        lines.append(f"| `{key}` | {kinds(value)}{default(key, found)} | {value['description']} |")
    return "\n".join(lines) + "\n"


def default(key: str, table: dict[str, Any]) -> str:
    """Return the default of a key as the page shows it."""
    value = table["properties"][key].get("default")
    if key in table.get("required", ()):
        return "; required"
    if value in (None, {}, []):
        return ""
    if isinstance(value, dict):
        return f"; `{{ {', '.join(f'{name} = {json.dumps(one)}' for name, one in value.items())} }}`"
    return f"; `{json.dumps(value)}`"


def kinds(value: dict[str, Any]) -> str:
    """Return the kinds of values that a key accepts, as text."""
    listed = [value, *value.get("anyOf", ()), *value.get("oneOf", ())]
    *others, last = dict.fromkeys(filter(None, map(kind, listed)))
    return ", ".join([*others, "list of these" if last == f"list of {', '.join(others)}" else last])


def kind(value: dict[str, Any]) -> str:
    """Return the kind of a schema; an empty string if it only lists alternatives."""
    if "$ref" in value:
        title = TABLES[value["$ref"].rpartition("/")[2]].title
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    if "const" in value or "enum" in value:
        return ", ".join(f"`{json.dumps(one)}`" for one in value.get("enum", [value.get("const")]))
    if value.get("type") == "array":
        least = f" at least {value['minItems']}" if value.get("minItems", 0) > 1 else ""
        return f"list of{least} {kinds(value['items'])}"
    if value.get("type") == "object":
        return f"table of {kinds(value['additionalProperties'])}"
    names = {"string": "text", "boolean": "boolean", "integer": "integer", "number": "number"}
    return names.get(value.get("type", ""), "") + bounds(value)


def bounds(value: dict[str, Any]) -> str:
    """Return the range of a number."""
    more = f"more than {value['exclusiveMinimum']}" if "exclusiveMinimum" in value else value.get("minimum")
    if "maximum" in value:
        return f" {more} to {value['maximum']}"
    return "" if more is None else f" {more} or more" if "minimum" in value else f" {more}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
