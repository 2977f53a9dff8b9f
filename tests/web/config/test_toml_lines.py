"""Where a key of a TOML document stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from slidegate.web.config.toml_lines import KeyPath, key_lines, line_of

PAGE = '''\
limits = "5/minute"  # [not.a.table]
"quoted key" = 'x # not a comment'
'lit' = """
[no]
a = "b"  \\"""
"""
client.trusted = [
  "192.0.2.0/24", # first
  "]",

  "198.51.100.0/24",
]
text = \'\'\'
[[rules]]
\'\'\'\'
when = 1979-05-27 07:32:00  # a scalar with a space in it
empty = []
mixed = [1, { key = { header = "X" }, "a.b" = [ [], [2] ] },
  3]

[[rules]]
path = "/a"
  [ rules . key ]
  header = "X-Key"

[[rules]]
path = "/b"
key = { header = "X", fallback = { cookie = "s" } }
[[rules.more]]
x = 1
[[rules.more]]
x.y."z" = -0.5e3
[store]
env = "NAME"'''

EXPECTED = {
    ("limits",): 1,
    ("quoted key",): 2,
    ("lit",): 3,
    ("client",): 7,
    ("client", "trusted"): 7,
    ("client", "trusted", 0): 8,
    ("client", "trusted", 1): 9,
    ("client", "trusted", 2): 11,
    ("text",): 13,
    ("when",): 16,
    ("mixed", 1, "a.b", 1, 0): 18,
    ("mixed", 2): 19,
    ("rules", 0): 21,
    ("rules", 0, "path"): 22,
    ("rules", 0, "key"): 23,
    ("rules", 0, "key", "header"): 24,
    ("rules", 1): 26,
    ("rules", 1, "key", "fallback", "cookie"): 28,
    ("rules", 1, "more", 0, "x"): 30,
    ("rules", 1, "more", 1, "x", "y", "z"): 32,
    ("store", "env"): 34,
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
    assert line_of(lines, ("rules", 1, "limits")) == 26
    assert line_of(lines, ("rulez",)) is None
