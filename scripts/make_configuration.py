"""Writes the JSON Schema of the configuration file, and the page of its keys, from the definitions that validate it.

Run it from anywhere: ``python scripts/make_configuration.py``. With ``--check`` it changes nothing, and ends with 1
where one of them is old.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from slidegate.web.config_schema import json_schema

ROOT: Final = Path(__file__).resolve().parents[1]
SCHEMA: Final = ROOT / "docs" / "slidegate.schema.json"
PAGE: Final = ROOT / "docs" / "reference" / "configuration.md"


TABLES: Final = {
    "": ("The file", "Keys at the top of the file, before the first table."),
    "RuleTable": ("Rules", "Each rule is a table `[[rules]]`. Their order is that of the file."),
    "BanTable": ("Bans", "Each policy is a table `[bans.NAME]`."),
    "Client": ("Client", "The table `[client]`, and the table of a key that is `client`."),
    "KeyTable": ("Keys", 'A table such as `{ header = "X-API-Key" }`.'),
    "ConditionTable": ("Conditions", 'A table such as `{ network = "GeoLite2-Country.mmdb", is_in = ["NL"] }`.'),
    "QuotaTable": ("Quotas", "A table in `limits`, alone or in a list."),
    "MessageTable": ("Messages", "The table `[messages]`, about messages over websockets."),
    "ListTable": ("Lists", "A table in `blocklist` or `allowlist`."),
    "Environment": ("Environment", "A table in the place of an address that holds a password."),
}
"""The tables of the file: the heading of each on the page, and how one stands in the file."""
INTRODUCTION: Final = """# Every key of the configuration file

What may stand in `slidegate.toml`? A link in the column "value" means such a table. Durations are text like `"30s"`;
limits are text, such as `"5/minute; 50/hour"`. Unknown keys and values of other types are errors.
[The configuration file](../guides/configuration.md) says how it is loaded,
[examples/slidegate.toml](../../examples/slidegate.toml) is complete, and editors read
[slidegate.schema.json](../slidegate.schema.json). `scripts/make_configuration.py` makes this page.
"""


def main(arguments: list[str]) -> int:
    """Write the schema and the page, or compare them."""
    schema = json_schema()
    page = "\n".join([INTRODUCTION, *(section(name, schema) for name in TABLES)])
    made = {SCHEMA: json.dumps(schema, indent=2) + "\n", PAGE: page}
    if arguments == ["--check"]:
        return int(any(path.read_text("utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


def section(name: str, schema: dict[str, Any]) -> str:
    """Return the part of the page about one table."""
    found = schema["$defs"][name] if name else schema
    title, written = TABLES[name]
    about = f"{found['description']} " if name else ""
    lines = [f"## {title}", "", f"{about}{written}", ""]
    lines += ["| key | value | by default | meaning |", "| --- | --- | --- | --- |"]
    for key, value in found["properties"].items():
        lines.append(f"| `{key}` | {kinds(value)} | {default(key, found)} | {value['description']} |")
    return "\n".join(lines) + "\n"


def default(key: str, table: dict[str, Any]) -> str:
    """Return how a table says what holds without a key."""
    value = table["properties"][key]
    if key in table.get("required", ()):
        return "required"
    if isinstance(value.get("default"), dict) and value["default"]:
        return f"`{{ {', '.join(f'{name} = {json.dumps(one)}' for name, one in value['default'].items())} }}`"
    if "default" in value:
        return f"`{json.dumps(value['default'])}`"
    return "" if "by default" in value["description"] else "none"


def kinds(value: dict[str, Any]) -> str:
    """Return the kinds of values that a key takes, in words."""
    found = (kind(one) for one in [value, *value.get("anyOf", ()), *value.get("oneOf", ())])
    return " or ".join(dict.fromkeys(filter(None, found)))


def kind(value: dict[str, Any]) -> str:
    """Return one kind of value; nothing where the schema only lists others."""
    if "$ref" in value:
        title, _ = TABLES[value["$ref"].rpartition("/")[2]]
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    if "const" in value or "enum" in value:
        return " or ".join(f"`{json.dumps(one)}`" for one in value.get("enum", [value.get("const")]))
    if value.get("type") == "array":
        least = f" of at least {value['minItems']}" if value.get("minItems", 0) > 1 else ""
        return f"list{least} ({kinds(value['items'])})"
    if value.get("type") == "object":
        return f"table of names, each with {kinds(value['additionalProperties'])}"
    names = {"string": "text", "boolean": "`true` or `false`", "integer": "whole number", "number": "number"}
    return names.get(value.get("type", ""), "") + bounds(value)


def bounds(value: dict[str, Any]) -> str:
    """Return the range of a number."""
    more = f"more than {value['exclusiveMinimum']}" if "exclusiveMinimum" in value else value.get("minimum")
    if "maximum" in value:
        return f", {more} to {value['maximum']}"
    return "" if more is None else f", {more} or more" if "minimum" in value else f", {more}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
