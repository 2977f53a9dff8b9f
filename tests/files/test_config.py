"""The configuration file, its messages, and what its JSON Schema says of mistakes; and the encodings of all files.

file_messages.txt has each message whole, as its user reads it.
"""

import codecs
import json
import re
import tomllib
from collections.abc import Callable, Collection
from contextlib import redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from inspect import Parameter, signature
from io import StringIO
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slidegate
from slidegate import BanPolicy, ConfigurationError, Limiter, Networks, Quota, RateLimitMiddleware, Rule, everyone
from slidegate.files.config import MAKERS, OF_FUNCTIONS, OF_LIMITER, OPTIONS
from slidegate.ops.cli import run

from ..asgi import hello
from ..drawing import examples
from ..web.middlewares import operators

FILE_MESSAGES = Path(__file__).with_name("file_messages.txt")
TABLE = '[[rules]]\npath = "/a"\nlimits = "5/minute"\n'
TABLES = {"RULE": TABLE, "NAMED": f'{TABLE}name = "x"\n', "BANS": "[bans.s]\n"}


ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = ROOT / "examples" / "slidegate.toml"
EVERYTHING_MADE = Path(__file__).with_name("everything.txt")
"""The rules and policies that it makes, in their order."""


def test_everything_can_be_written_in_the_file(texts: Callable[..., None]) -> None:
    app = RateLimitMiddleware.from_file(hello, EVERYTHING).app
    made: dict[str, Any] = {repr(one): one for one in (*app.rules, *app.policy.signals.ban_policies.values())}
    usual = {type(one): vars(one) for one in (Rule("/", "1/s"), BanPolicy())}

    def described(name: str) -> str:
        """Return the attributes that are not as by default; those of a method are its object's."""
        found = {at: getattr(value, "__self__", value) for at, value in vars(made[name]).items()}
        shown = ("name", "limits", "concurrency", "after")  # in the name of the entry
        left_out = (*shown, "label", "rule_paths", "strikes")  # the others follow from these
        own = [at for at, value in found.items() if at not in left_out and value != usual[type(made[name])][at]]
        return "\n".join(f"{at}: {found[at]!r}" for at in own)

    assert re.findall("^> (.*)$", EVERYTHING_MADE.read_text("utf-8"), re.MULTILINE) == [*made]
    texts(EVERYTHING_MADE, "> ", described)


OF_VERSION_0_1 = """\
<Rule '/health' exempt>
<Rule 'POST /login' 5/1m; 500/month from 15 in Europe/Berlin>
<Rule 'api' 100/10s>
<Rule '/export' 10/1h>
<Rule '/wp-admin/{rest:path}' block>
<Rule '/render' 4 at a time>
<Rule '/mcp' 120/1m>
<Rule 'export tool' 2/1h>
<Rule 'service' 2000/1s @10>
<Rule 'default' 600/1m shadow>
<Rule '/v6' 60/1m>
<Rule '/q' 60/1m>
<BanPolicy 'scanning' after 20/10m, 1h>
<BanPolicy 'accounts' after 100/1h, 1h>
""".splitlines()


def test_a_file_of_version_0_1_makes_what_it_made_then() -> None:
    """It is the example of that version, and stays as it is."""
    app = RateLimitMiddleware.from_file(hello, Path(__file__).with_name("slidegate_0_1.toml")).app
    made = [*map(repr, app.rules), *map(repr, app.policy.signals.ban_policies.values())]
    assert made == OF_VERSION_0_1


FILES = sorted((ROOT / "examples").rglob("*.toml"))
EXAMPLE = EVERYTHING.read_bytes()
WHOLE = tomllib.loads(EXAMPLE.decode())
SCHEMA = json.loads((ROOT / "docs" / "slidegate.schema.json").read_text("utf-8"))
OBJECTS = [SCHEMA, *SCHEMA["$defs"].values()]
KEYS = sorted({key for table in OBJECTS for key in table["properties"]})


def accepts(document: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def mistake(document: dict[str, Any], directory: Path) -> str:
    lines = [f"{json.dumps(key)} = {toml(value)}\n" for key, value in document.items()]
    return refusal("".join(lines), directory)


def refusal(content: str | bytes, directory: Path) -> str:
    """Return the error about a file beside the list that the example has; empty if it is read."""
    (directory / "demo").mkdir(exist_ok=True)
    (directory / "demo" / "blocked.netset").write_text("192.0.2.0/24\n", "utf-8")
    path, said = directory / "slidegate.toml", ""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        RateLimitMiddleware.from_file(hello, path)
    except ConfigurationError as error:
        said = str(error)
        assert said.startswith(f"{path}: ")
        assert said.count(str(path)) == 1, "a place is said once"
        assert "\n" not in said
    return said.removeprefix(f"{path}: ")


def parsed(text: str | bytes) -> dict[str, Any] | None:
    """Return a document, None if it is no TOML, or if it has a number that cannot be shown."""
    with suppress(ValueError, RecursionError):
        document = tomllib.loads(text if isinstance(text, str) else text.decode())
        return document if repr(document) else None  # jsonschema shows what it refuses
    return None


def test_a_mistake_in_a_file_is_named_with_what_was_expected(tmp_path: Path, texts: Callable[..., None]) -> None:
    operators(tmp_path)
    (tmp_path / "blocked.netset").write_text("192.0.2.0/24\n", "utf-8")

    def read(written: str) -> str:
        return f"slidegate.toml: {refusal(eval(written, dict(TABLES)), tmp_path)}".replace(f"{tmp_path}/", "")

    texts(FILE_MESSAGES, "toml ", read)


DESCRIBED: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "Rules": (Rule, OF_FUNCTIONS),
    "Bans": (BanPolicy, ("name",)),
    "Client": (slidegate.client_ip, ()),
    "Quotas": (Quota, ()),
    "Messages": (slidegate.MessageLimits, ()),
    "Lists": (Networks.from_file, ()),
}
"""What a table is the arguments of, and which of these it has not."""


def keys_in(properties: dict[str, Any], required: Collection[str]) -> dict[str, object]:
    empty = dict.fromkeys(required, Parameter.empty)
    return {key: known.get("default") for key, known in properties.items()} | empty


@pytest.mark.parametrize("title", DESCRIBED)
def test_the_schema_has_the_keys_and_defaults_of_each_class(title: str) -> None:
    described, left_out = DESCRIBED[title]
    parameters = {one.name: one.default for one in signature(described).parameters.values() if one.name not in left_out}
    if title == "Quotas":
        parameters = {"quota": parameters.pop("text"), **parameters}
    expected = {name: None if default == () else default for name, default in parameters.items()}
    if "key" in expected:
        expected["key"] = "client"
    table = SCHEMA["$defs"][title]
    assert keys_in(table["properties"], table.get("required", ())) == expected


def test_the_schema_has_the_keys_of_a_file_and_of_its_keys() -> None:
    limiter = signature(Limiter).parameters
    assert {*SCHEMA["properties"]} == {*OPTIONS}
    assert all(SCHEMA["properties"][name]["default"] == limiter[name].default for name in ("deadline", "on_error"))
    beside = [[*signature(make).parameters][1:] for make in MAKERS.values()]
    assert {*SCHEMA["$defs"]["Keys"]["properties"]} == {*MAKERS, *chain(*beside)}


PAGE = (ROOT / "docs" / "reference" / "configuration.md").read_text("utf-8")
TITLES = {"The file": SCHEMA, **{title: SCHEMA["$defs"][title] for title in ("Bans", "Client", "Lists")}}


@pytest.mark.parametrize("title", TITLES)
def test_the_page_describes_each_key_as_the_editor_does(title: str) -> None:
    section = PAGE.partition(f"### {title}\n")[2].partition("\n##")[0]
    lines = re.findall(r"^\| `(\w+)`: .* \| (.*) \|$", section, re.MULTILINE)
    assert lines == [(key, known["description"]) for key, known in TITLES[title]["properties"].items()]


SHOWN = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [*SHOWN, *(path.read_text("utf-8") for path in FILES)])
def test_what_is_shown_is_accepted(text: str) -> None:
    assert accepts(tomllib.loads(text))


LINES = [line for line in FILE_MESSAGES.read_text("utf-8").splitlines() if line.startswith("toml ")]
TEXTS = [eval(line.removeprefix("toml "), dict(TABLES)) for line in LINES]
MISTAKEN = [(text, document) for text in TEXTS if (document := parsed(text)) is not None]


@pytest.mark.parametrize(("text", "document"), MISTAKEN, ids=[ascii(text[:30]) for text, _ in MISTAKEN])
def test_what_the_editor_accepts_is_wrong_by_the_meaning_of_a_value(text: Any, document: Any, tmp_path: Path) -> None:
    """A wrong type, an unknown key, and keys that exclude each other, the editor shows."""
    said = refusal(text, tmp_path)
    about_shape = re.compile(
        "unknown option|not an option|is missing|everyone> does not|expected (a table|true or false|one of header)"
    )
    assert not accepts(document) or not about_shape.search(said), said


GIVEN: dict[str, Any] = {"limits": "9/minute", "concurrency": 4, "key": "everyone", "cost": 2, "wait": "1s"}
GIVEN |= {
    "count_if": [401],
    "status": 404,
    **dict.fromkeys(["count_denied", "final", "exempt", "block", "shadow"], True),
}
IN_CODE = GIVEN | {"key": everyone, "count_if": lambda status: status == 401}


@pytest.mark.parametrize("options", list(combinations(GIVEN, 3)), ids="-".join)
def test_schema_and_code_agree_about_options_that_exclude_each_other(options: tuple[str, ...], tmp_path: Path) -> None:
    """All of three options, so that one may bring what another one needs."""
    table = {"path": "/a"} | {option: GIVEN[option] for option in options}
    try:
        Rule("/a", **{option: IN_CODE[option] for option in options})
        fine = True
    except ConfigurationError as error:
        fine = "expected limits" in str(error)  # what is missing is the code's to say
    assert accepts({"rules": [table]}) is fine
    assert fine or mistake({"rules": [table]}, tmp_path)


NOTHING = "exempt = false, block = false, shadow = false, final = false, cost = 1, count_denied = false"


@pytest.mark.parametrize(
    "text",
    [
        f'rules = [{{ path = "/a", limits = "9/minute", key = "client", {NOTHING} }}]',
        'rules = [{ path = "/a", exempt = true, key = "client", cost = 1 }]',
        'blocklist = ["192.0.2.0/24"]',
        'messages = { limits = "9/second" }',
        "rules = []",
    ],
)
def test_an_option_that_says_nothing_excludes_nothing_and_a_file_needs_no_limit(text: str, tmp_path: Path) -> None:
    assert accepts(tomllib.loads(text))
    assert not refusal(text, tmp_path)


def test_every_key_says_in_the_editor_what_it_is_and_has_a_message_for_a_value_that_cannot_work() -> None:
    assert all("description" in key for table in OBJECTS for key in table["properties"].values())
    assert json.dumps(SCHEMA).count("null") == 0
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    said = FILE_MESSAGES.read_text("utf-8")
    assert [key for key in KEYS if not re.search(rf"^slidegate\.toml: (?:[\w:]+: )*{key}: ", said, re.MULTILINE)] == []


# -- files with any mistake --------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.booleans() | st.integers() | st.floats() | words | st.sampled_from(["client", "5/minute", "*", "/a", "1h"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def key_paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, one in items for inner in key_paths(one, (*path, key)))][not path :]


@given(
    st.sampled_from(key_paths(WHOLE)), st.sampled_from(["replace", "delete", "rename"]), values, st.sampled_from(KEYS)
)
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_with_one_change_is_read_or_refused_with_its_place_and_check_says_which(
    tmp_path: Path, key_path: tuple[str | int, ...], change: str, value: Any, other: str
) -> None:
    document = deepcopy(WHOLE)
    table: Any = document
    for part in key_path[:-1]:
        table = table[part]
    if change == "replace":
        table[key_path[-1]] = value
    else:
        old = table.pop(key_path[-1])
        if change == "rename" and isinstance(table, dict):
            table[other] = old
    said = mistake(document, tmp_path)
    known = "|".join(SCHEMA["properties"])
    location = rf"({known})\b|unknown option |not TOML: |expected limits"
    assert not said or re.fullmatch(f"({location})[^\n]*", said), said
    if key_path[0] in OF_LIMITER:  # the command makes a limiter of its own
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
            code = run(["check", str(tmp_path / "slidegate.toml")])
        assert (code == 2) is bool(said), err.getvalue()


@given(st.integers(0, len(EXAMPLE)), st.binary(max_size=8), st.integers(0, 40))
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_with_other_bytes_is_read_or_refused(tmp_path: Path, at: int, written: bytes, cut: int) -> None:
    refusal(EXAMPLE[:at] + written + EXAMPLE[at + cut :], tmp_path)


# -- every file that users give is read in UTF-8, with its mark or without; one in another encoding is refused ---------


LISTED = "# our list\n192.0.2.0/24\n2001:db8::/48 ; SBL1\n"
CONFIGURATION = 'limits = "3/minute"\nheaders = "legacy"\n'
LOG = "".join(
    f'203.0.113.{n % 3} - - [10/Oct/2026:13:55:{n:02d} +0000] "GET /a HTTP/1.1" 200 12 "-" "curl"\n' for n in range(30)
)
ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "UTF-16": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "UTF-16 of big ends": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-16 of big ends without a mark": lambda text: text.encode("utf-16-be"),
    "UTF-8": str.encode,
    "UTF-8 with a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
}


READ: dict[str, tuple[str, Callable[[Path], int]]] = {
    "list": (LISTED, lambda path: len(Networks.from_file(path))),
    "configuration": (CONFIGURATION, lambda path: len(RateLimitMiddleware.from_file(hello, path).app.rules)),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", READ)
def test_a_file_in_another_encoding_is_refused(kind: str, encoding: str, newline: str, tmp_path: Path) -> None:
    text, read = READ[kind]
    path = tmp_path / "some.file"
    path.write_bytes(ENCODINGS[encoding](text.replace("\n", newline)))
    if encoding.startswith("UTF-8"):
        assert read(path) == {"list": 2, "configuration": 1}[kind]
        return
    for reads in (read, slidegate.network):
        with pytest.raises(ConfigurationError, match=r"some\.file"):
            reads(path)


LOGS = ENCODINGS | {"UTF-8 behind zeros": lambda text: bytes(9_000) + b"\n" + text.encode()}
"""The last one is a log that was truncated while a server wrote it."""


@pytest.mark.parametrize("encoding", LOGS)
def test_a_log_in_another_encoding_is_refused(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(LOGS[encoding](LOG))
    for command in (["suggest"], ["simulate", "--limit", "9/minute"]):
        code, shown = run([*command, str(path)]), capsys.readouterr()
        if encoding.startswith("UTF-8"):
            assert code == 0, shown.err
            assert command != ["suggest"] or "30 requests of 3 clients" in shown.out
        else:
            assert code == 1
            assert "lines cannot be read" in shown.err
            assert shown.err.strip().isprintable()
