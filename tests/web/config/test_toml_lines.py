"""Where a key of a TOML document stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from slidegate.web.config.toml_lines import KeyPath, key_lines, line_of

PAGE = '''\
limits = "5/minute"  # [not.a.table]
'lit' = """
[no]
"""
client.trusted = [
  "192.0.2.0/24", # first
  "]",
]
[[rules]]
path = "/a"
key = { header = "X", fallback = { cookie = "s" } }

[[rules]]
  [ rules . key ]
  header = "X-Key"'''

EXPECTED = {
    ("limits",): 1,
    ("lit",): 2,
    ("client", "trusted", 1): 7,
    ("rules", 0, "key", "fallback", "cookie"): 11,
    ("rules", 1): 13,
    ("rules", 1, "key", "header"): 15,
}


def paths(value: object, above: KeyPath = ()) -> Iterator[KeyPath]:
    if above:
        yield above
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*above, name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from paths(inner, (*above, place))


def test_each_key_is_found_on_its_line() -> None:
    lines = key_lines(PAGE)
    assert {path: lines[path] for path in EXPECTED} == EXPECTED
    assert set(lines) == set(paths(tomllib.loads(PAGE)))


def test_line_ends_of_other_systems_count_once() -> None:
    assert key_lines(PAGE.replace("\n", "\r\n")) == key_lines(PAGE)


def test_what_is_not_written_down_is_at_the_table_around_it() -> None:
    lines = key_lines(PAGE)
    assert line_of(lines, ("rules", 1, "limits")) == 13
    assert line_of(lines, ("rulez",)) is None
