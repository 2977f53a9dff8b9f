"""Where a key of a TOML document stands: everywhere that TOML lets one be written."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.web.config.toml_lines import KeyPath, key_lines, line_of, path_text

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


def test_a_path_is_written_as_people_do() -> None:
    assert path_text(("rules", 2, "key", "header")) == "rules[2].key.header"


STRINGS = st.sampled_from(
    ['""', "''", '"a # b"', "'\\'", '"\\""', '"]}"', '"""\n"x"\n"""', "'''\n''x\n'''", '"""a""""', '"""\\\n  b"""']
)
SCALARS = st.one_of(STRINGS, st.sampled_from(["1", "-1.5", "true", "inf", "1979-05-27", "07:32:00", "0xff"]))
NAMES = st.sampled_from(["a", "b-1", "_", "1", '"q.r"', "'s t'", '"\\u00e9"', '""'])
GAPS = st.sampled_from(["", " ", "\n", " # ] } = \n", "\n\n\t"])
BLANKS = st.sampled_from(["", " ", "\t"])


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    entries = [draw(GAPS) + value + draw(GAPS) for value in draw(st.lists(values, max_size=3))]
    return "[" + ",".join(entries) + draw(st.sampled_from(["", ",", "\n"]) if entries else GAPS) + "]"


@st.composite
def tables(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    return "{" + ", ".join(f"{draw(BLANKS)}{name}{draw(BLANKS)}={draw(BLANKS)}{draw(values)}" for name in names) + "}"


VALUES = st.recursive(SCALARS, lambda inner: st.one_of(arrays(inner), tables(inner)), max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Write tables with keys; a name stands once in each table, so that every document is well-formed."""
    pages = []
    for header in [
        "",
        "[t1]",
        "[[list]]",
        "[ list . 'in' ]",
        "[[list]]",
        "[t2.deep]",
        "[[list.many]]",
        "[[list.many]]",
    ]:
        pages.append(draw(GAPS.map(lambda gap: gap if gap.strip(" \t") == "" or "\n" in gap else "")) + header)
        pages += [
            draw(BLANKS) + name + draw(BLANKS) + "=" + draw(BLANKS) + draw(VALUES) + draw(st.sampled_from(["", " # ]"]))
            for name in draw(st.lists(NAMES, unique=True, max_size=3))
        ]
    return "\n".join(pages) + draw(st.sampled_from(["", "\n"]))


@given(documents())
@example("a={b={}}")
@example('x = """\n""""" # two quotes inside\ny = 1')
def test_the_scanner_finds_exactly_what_the_parser_does(text: str) -> None:
    lines = key_lines(text)
    assert set(lines) == set(paths(tomllib.loads(text)))
    for path, number in lines.items():
        # Cut off above its line a document does not have the key yet, so the line is not too high.
        above = "\n".join(text.split("\n")[: number - 1])
        try:
            known = set(paths(tomllib.loads(above)))
        except tomllib.TOMLDecodeError:
            continue  # the cut went through a value
        assert path not in known, (path, number)
