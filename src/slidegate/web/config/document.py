"""A configuration file and its errors: each names the file, the key, what was expected, and the closest name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import ConfigurationError, closest
from ..file_watcher import read_whole

if TYPE_CHECKING:
    from pydantic import ValidationError

_KINDS: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "float_type": "a number",
    "dict_type": "a table",
    "list_type": "a list",
    "model_type": "a table",
    "too_short": "more entries",
}
_EXAMPLES: Final = {
    "after": '"20/10m"',
    "allowlist": '["192.0.2.0/24"]',
    "allowlist.path": '"office.netset"',
    "bans": '{ scanning = { after = "20/10m" } }',
    "blocklist": '"blocked.netset"',
    "blocklist.path": '"blocked.netset"',
    "client": '{ trusted = ["10.0.0.0/8"] }',
    "count_if": "[401, 403]",
    "deadline": '"50ms"',
    "duration": '"1h"',
    "env": '"SLIDEGATE_STORE"',
    "factor": "4",
    "forgive": '"24h"',
    "jitter": "0.1",
    "key": '{ header = "X-API-Key" }',
    "limits": '"5/minute; 50/hour"',
    "load_shedding": '{ lag = "50ms" }',
    "load_shedding.exempt": '"/health"',
    "longest": '"7d"',
    "methods": '["GET", "POST"]',
    "most": '"100/minute"',
    "path": '"/items/{id}"',
    "prefix_after": '"4/1h"',
    "per_route": '"60/minute"',
    "rules": '[{ path = "*", limits = "100/minute" }]',
    "signals": '{ refused = 1, "/.env" = "ban" }',
    "silence": '["SG103"]',
    "store": '"memory://"',
    "trusted": '["10.0.0.0/8"]',
    "wait": '"200ms"',
}
_SYNTAX: Final = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


MOST_BYTES: Final = 2 << 20
"""The size of a configuration; 20,000 rules are one MiB, and to read it takes a hundred times its size in memory."""
MAX_DEPTH: Final = 32
"""The largest number of names in a dotted key: every reader of TOML takes time in proportion to its square."""
_DIGITS: Final = re.compile("[0-9][0-9_]{4000}")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_DEEP: Final = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")


class PlacedError(ConfigurationError):
    """An error whose message names its place already."""


class Document:
    """A configuration file as it was read; makes the errors about it.

    Args:
        path: The file.

    Attributes:
        data: The document, as `tomllib` returns it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = {}

    def read(self) -> None:
        """Read and parse the file.

        Raises:
            ConfigurationError: It cannot be read, or is not TOML.
        """
        try:
            content = read_whole(self.path, MOST_BYTES)
        except OSError as error:
            raise PlacedError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        except ConfigurationError as error:
            raise PlacedError(f"{self.path}: {error}") from None
        self.parse(content)

    def parse(self, content: bytes) -> None:
        """Parse the content of the file.

        Raises:
            ConfigurationError: It is not TOML.
        """
        text = ""
        try:
            text = content.decode("utf-8-sig")
            if deep := _DEEP.search(text):
                line = text.count("\n", 0, deep.start()) + 1
                raise PlacedError(f"{self.path}, line {line}: a key is nested too deeply; expected at most {MAX_DEPTH}")
            self.data = tomllib.loads(text)
        except UnicodeDecodeError as error:
            raise PlacedError(f"{self.path}: is not UTF-8 text (byte {error.start})") from None
        except tomllib.TOMLDecodeError as error:
            raise self._syntax_error(text, str(error)) from None
        except RecursionError:
            raise PlacedError(f"{self.path}: is nested too deeply") from None
        except PlacedError:
            raise
        except ValueError:
            # Python reads no number of more than 4,300 digits.
            line = next((number for number, row in enumerate(text.split("\n"), 1) if _DIGITS.search(row)), 1)
            raise PlacedError(f"{self.path}, line {line}: a number has too many digits") from None

    def error(self, path: Sequence[str | int], text: str) -> ConfigurationError:
        """Make an error about a key."""
        return PlacedError(f"{self.path}: {_path_text(path)}: {text}")

    @contextmanager
    def at(self, *path: str | int) -> Iterator[None]:
        """Add the file and the path of the value at `path` to a `ConfigurationError` raised inside this block."""
        try:
            yield
        except PlacedError:
            raise
        except ConfigurationError as error:
            said, colon, text = str(error).partition(": ")
            name = said.rpartition(" ")[2]  # "rule name" is about the key "name"
            value: Any = self.data
            for part in path:
                value = value[part]
            # A message about an option begins with its name; the option may stand in a table inside this one.
            tables = {(): value, **{(key,): inner for key, inner in value.items()}} if isinstance(value, dict) else {}
            for below, table in tables.items():
                if colon and isinstance(table, dict) and name in table:
                    raise self.error((*path, *below, name), text) from None
            raise self.error(path, text if colon and name == path[-1] else str(error)) from None

    def invalid(self, error: ValidationError) -> ConfigurationError:
        """Make one error of everything that validation found."""
        found = []
        for fact in error.errors(include_url=False):
            path, value = _place(self.data, fact["loc"])
            context: Mapping[str, Any] = fact.get("ctx", {})
            if fact["type"] == "unknown_key":
                path = (*path, context["key"])
                text = f"unknown key{closest(context['key'], context['known'])}"
            elif fact["type"] == "missing":
                path = (*path, fact["loc"][-1])
                text = f"missing; expected {_example(path)}"
            else:
                text = _wrong_value(fact["type"], fact["msg"], context, path, value)
            found.append(str(self.error(path, text)))
        return PlacedError("\n".join(found))

    def _syntax_error(self, text: str, message: str) -> ConfigurationError:
        found = _SYNTAX.fullmatch(message)
        what = found[1] if found else message
        line = found[2] if found and found[2] else text.count("\n") + 1
        column = f", column {found[3]}" if found and found[3] else ""
        return PlacedError(f"{self.path}, line {line}{column}: not TOML: {what[:1].lower()}{what[1:]}")


def _path_text(path: Sequence[str | int]) -> str:
    """Write a path as people do: ``rules[2].limits``, ``signals."/.env"``."""
    text = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part if _BARE.fullmatch(part) else json.dumps(part)}"
        for part in path
    )
    return text.removeprefix(".")


def _place(data: Any, location: Sequence[str | int]) -> tuple[tuple[str | int, ...], object]:
    """Return the path of a value, and the value; steps that only the validator knows are left out."""
    path: list[str | int] = []
    for part in location:
        if part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int):
            data = data[part]
            path.append(part)
    return tuple(path), data


def _example(path: Sequence[str | int]) -> str:
    names = [part for part in path if isinstance(part, str)]
    # The keys in the table of signals are names that the user chose.
    name = "signals" if "signals" in names[:-1] else names[-1] if names else ""
    example = _EXAMPLES.get(".".join(names[-2:]), _EXAMPLES.get(name))
    return f"for example {name} = {example}" if example else name


def _wrong_value(kind: str, message: str, context: Mapping[str, Any], path: Sequence[str | int], value: object) -> str:
    try:
        written = json.dumps(value, default=str)
    except ValueError:
        written = "a number with too many digits"
    written = written if len(written) <= 60 else f"{written[:57]}..."
    if kind == "wrong_table":
        return message
    if kind == "literal_error":
        near = closest(value, re.findall("'([^']*)'", context["expected"])) if isinstance(value, str) else ""
        return f"expected {context['expected']}, not {written}{near}"
    expected = _KINDS.get(kind) or message.removeprefix("Input should be ")
    example = _example(path)
    hint = f", {example}" if " = " in example else ""
    return f"expected {expected}{hint}, not {written}"
