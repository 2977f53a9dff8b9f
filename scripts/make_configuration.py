"""Generates the JSON Schema of the configuration file, and the tables of its keys, from the models that validate it.

Run ``python -m scripts.make_configuration``. With ``--check`` it changes nothing, and exits with 1 if a generated file
is outdated. On the page, ``<!-- keys of NAME -->`` stands above the keys of a model: a table with a line for each key
if it begins with ``|``, otherwise a sentence.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from slidegate.web.config_schema import json_schema

ROOT: Final = Path(__file__).resolve().parents[1]
SCHEMA: Final = ROOT / "docs" / "slidegate.schema.json"
PAGE: Final = ROOT / "docs" / "guides" / "configuration.md"
KEYS: Final = re.compile(r"(?P<head><!-- keys of (?P<name>[\w ]+) -->\n\n).*?(?=\n<!-- end of keys -->)", re.DOTALL)
TITLE: Final = re.compile(r"^### (.+)\n(?:(?!###|<!--).*\n)*<!-- keys of (\w+) -->", re.MULTILINE)
TYPES: Final = {"string": "text"}
"""Other words than those of JSON Schema."""


def main(arguments: list[str]) -> int:
    """Write the schema and the page; with ``--check``, compare them."""
    page = PAGE.read_text("utf-8")
    made = {SCHEMA: json.dumps(json_schema(), indent=2) + "\n", PAGE: Described(json_schema(), page).page()}
    if arguments == ["--check"]:
        return int(any(path.read_text("utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


class Described:
    """The page about a schema."""

    def __init__(self, schema: dict[str, Any], text: str) -> None:
        self._schema, self._text = schema, text
        self._titles = {name: title for title, name in TITLE.findall(text)}

    def page(self) -> str:
        """Return the page with the keys of every model."""
        return KEYS.sub(self._keys, self._text)

    def _keys(self, found: re.Match[str]) -> str:
        model = self._schema["$defs"].get(found["name"], self._schema)
        if not found[0].removeprefix(found["head"]).startswith("|"):
            return f"{found['head']}Keys: {', '.join(f'`{key}`' for key in model['properties'])}.\n"
        rows = [
            f"| `{key}` | {self._kinds(value)}{default(key, model)} | {value['description']} |\n"
            for key, value in model["properties"].items()
        ]
        return "".join([found["head"], "| key | value | meaning |\n", "| --- | --- | --- |\n", *rows])

    def _kinds(self, value: dict[str, Any]) -> str:
        """Return the kinds of values that a key accepts."""
        listed = [value, *value.get("anyOf", ()), *value.get("oneOf", ())]
        *others, last = dict.fromkeys(filter(None, map(self._kind, listed)))
        return ", ".join([*others, "list of these" if last == f"list of {', '.join(others)}" else last])

    def _kind(self, value: dict[str, Any]) -> str:
        """Return the kind of a schema; an empty string if it only lists alternatives."""
        if "$ref" in value:
            title = self._titles[value["$ref"].rpartition("/")[2]]
            return f"[{title}](#{title.lower().replace(' ', '-')})"
        if "const" in value or "enum" in value:
            return ", ".join(f"`{json.dumps(one)}`" for one in value.get("enum", [value.get("const")]))
        if value.get("type") == "array":
            return f"list of {self._kinds(value['items'])}"
        if value.get("type") == "object":
            return f"table of {self._kinds(value['additionalProperties'])}"
        name = value.get("type", "")
        span = f" {value['minimum']} to {value['maximum']}" if "maximum" in value else ""
        return TYPES.get(name, name) + span


def default(key: str, model: dict[str, Any]) -> str:
    """Return the default of a key as the page shows it."""
    value = model["properties"][key].get("default")
    if value in (None, {}, []):
        return ""
    if isinstance(value, dict):
        return f"; `{{ {', '.join(f'{name} = {json.dumps(one)}' for name, one in value.items())} }}`"
    return f"; `{json.dumps(value)}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
