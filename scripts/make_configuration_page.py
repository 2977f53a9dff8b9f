"""Writes docs/reference/configuration.md, every key of the configuration file, from schema and example.

Run it from anywhere: ``python scripts/make_configuration_page.py``. With ``--check`` it changes nothing, and ends
with 1 where the page is an old one.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from slidegate.web.config_schema import json_schema

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = ROOT / "docs" / "reference" / "configuration.md"
EXAMPLE: Final = ROOT / "examples" / "slidegate.toml"


class Table(NamedTuple):
    """A table of the file.

    Attributes:
        title: Its heading on the page.
        written: How one stands in the file.
        keys: The keys whose values are such tables, wherever they stand.
    """

    title: str
    written: str
    keys: tuple[str, ...]


TABLES: Final = {
    "": Table("The file", "Keys at the top of the file, before the first table.", ()),
    "RuleTable": Table("Rules", "Each rule is a table `[[rules]]`. Their order is that of the file.", ("rules",)),
    "BanTable": Table("Bans", "Each policy is a table `[bans.NAME]`.", ("bans",)),
    "Client": Table("Client", "The table `[client]`, and the table of a key that is `client`.", ("client",)),
    "KeyTable": Table(
        "Keys",
        'A table such as `{ header = "X-API-Key" }`. It has one of the first six keys.',
        ("key", "combine", "fallback"),
    ),
    "QuotaTable": Table("Quotas", "A table in `limits`, alone or in a list.", ("limits", "default_limits")),
    "MessageTable": Table("Messages", "The table `[messages]`, about messages over websockets.", ("messages",)),
    "LoadSheddingTable": Table(
        "Shedding of load", "The table `[load_shedding]`, about requests before all rules.", ("load_shedding",)
    ),
    "ListTable": Table("Lists", "A table in `blocklist` or `allowlist`.", ("blocklist", "allowlist")),
    "Environment": Table("Environment", "A table in the place of an address that holds a password.", ("store",)),
}
ELSEWHERE: Final[dict[tuple[str, str], object]] = {
    ("", "limits"): "100/minute",
    ("Client", "trust_all"): True,
    ("Environment", "env"): "SLIDEGATE_STORE",
    ("QuotaTable", "name"): "month",
    ("RuleTable", "on_exceeded"): True,
}
"""Examples of keys that the example file does not have."""
HEADERS: Final = {
    ("", "rules"): "[[rules]]",
    ("", "client"): "[client]",
    ("", "bans"): "[bans.scanning]",
    ("", "messages"): "[messages]",
    ("", "load_shedding"): "[load_shedding]",
}
"""Keys that are written as the header of a table."""
INTRODUCTION: Final = """# Every key of the configuration file

This page is made by `scripts/make_configuration_page.py` from the definitions that validate the file, as is
[slidegate.schema.json](../slidegate.schema.json) for editors. [The configuration file](../guides/configuration.md)
says how the file is used, and how it is followed while the application runs. A complete file is
[examples/slidegate.toml](../../examples/slidegate.toml).

A key that is not here is an error, and so is a value of another type: `"5"` is no number. Durations are text, such as
`"50ms"`, `"30s"` or `"7d"`. Limits are text, such as `"5/minute; 50/hour"`.
"""


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    if arguments == ["--check"]:
        return int(TARGET.read_text("utf-8") != text())
    TARGET.write_text(text(), encoding="utf-8")
    return 0


def text() -> str:
    """Return the text of the page."""
    schema = json_schema()
    return "\n".join([INTRODUCTION, *(section(name, schema) for name in TABLES)])


def definition(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a table."""
    found: dict[str, Any] = schema["$defs"][name] if name else schema
    return found


def section(name: str, schema: dict[str, Any]) -> str:
    """Return the part of the page about one table."""
    found, table = definition(name, schema), TABLES[name]
    about = f"{found['description']} " if name else ""
    lines = [f"## {table.title}", "", f"{about}{table.written}", ""]
    lines += ["| key | value | by default | meaning | example |", "| --- | --- | --- | --- | --- |"]
    shown = examples()
    for key, value in found["properties"].items():
        cells = [
            f"`{key}`",
            kinds(value),
            default(key, found),
            value["description"],
            f"`{HEADERS.get((name, key)) or written(key, shown[name, key])}`",
        ]
        assert not any("|" in cell for cell in cells), cells
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def default(key: str, table: dict[str, Any]) -> str:
    """Return how a table says what holds without a key."""
    if key in table.get("required", ()):
        return "has to be there"
    value = table["properties"][key]
    if "default" not in value:
        return "" if "by default" in value["description"] else "none"
    return "its defaults" if isinstance(value["default"], dict) and "$ref" in value else f"`{inline(value['default'])}`"


def kinds(value: dict[str, Any]) -> str:
    """Return the kinds of values that a key takes, in words."""
    found = list(dict.fromkeys(kind(one) for one in [value, *value.get("anyOf", ()), *value.get("oneOf", ())]))
    return ", or ".join(filter(None, found))


def kind(value: dict[str, Any]) -> str:
    """Return one kind of value; nothing where the schema only lists others."""
    if "$ref" in value:
        title = TABLES[value["$ref"].rpartition("/")[2]].title
        return f"a table: [{title}](#{title.lower().replace(' ', '-')})"
    if "const" in value or "enum" in value:
        return " or ".join(f"`{inline(one)}`" for one in value.get("enum", [value.get("const")]))
    match value.get("type"):
        case "string":
            return "text"
        case "boolean":
            return "`true` or `false`"
        case "integer" | "number" as type_:
            return f"{'whole number' if type_ == 'integer' else 'number'}{bounds(value)}"
        case "array":
            least = f" of at least {value['minItems']}" if value.get("minItems", 0) > 1 else ""
            return f"a list{least} ({kinds(value['items'])})"
        case "object":
            return f"a table of names, each with {kinds(value['additionalProperties'])}"
    return ""


def bounds(value: dict[str, Any]) -> str:
    """Return the range of a number."""
    least = value.get("minimum", f"more than {value['exclusiveMinimum']}" if "exclusiveMinimum" in value else None)
    most = value.get("maximum")
    if least is None and most is None:
        return ""
    if most is None:
        return f", {least} or more" if "minimum" in value else f", {least}"
    return f", {inline(least)} to {inline(most)}"


def examples() -> dict[tuple[str, str], object]:
    """Return an example of every key of every table: (table, key) -> value."""
    found: dict[tuple[str, str], object] = {}
    for place in within("", tomllib.loads(EXAMPLE.read_text("utf-8"))):
        for key, value in place[1].items():
            found.setdefault((place[0], key), value)
    return {**ELSEWHERE, **found}


def within(name: str, table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a table and the tables in it, each with the name of its definition."""
    yield name, table
    for key, value in table.items():
        inner = next((one for one, known in TABLES.items() if key in known.keys), None)
        if inner is None:
            continue
        tables = value if isinstance(value, list) else value.values() if key == "bans" else [value]
        for one in tables:
            if isinstance(one, dict):
                yield from within(inner, one)


def written(key: str, value: object) -> str:
    """Return a key and its value as they stand in a file; two items of a long value are enough."""
    if isinstance(value, list):
        value = value[:1] if isinstance(value[0], dict) else value[:2]
    elif isinstance(value, dict) and key == "signals":
        value = dict(list(value.items())[:2])
    return f"{key} = {inline(value)}"


def inline(value: object) -> str:
    """Return a value in TOML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {inline(one)}" for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
