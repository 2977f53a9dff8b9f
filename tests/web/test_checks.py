"""What cannot work is refused where it is written, or ends the start of its server; what looks wrong is said once.

messages.txt and file_messages.txt have each message whole, as its user reads it.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from copy import deepcopy
from functools import partial
from io import StringIO
from itertools import combinations
from pathlib import Path
from signal import SIGINT
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.routing import Mount, Route

import slidegate
from scripts import make_configuration
from scripts.make_configuration import json_schema
from slidegate import BanPolicy, ConfigurationError, Limiter, RateLimit, RateLimitMiddleware, Rule, everyone
from slidegate.core import Store
from slidegate.httpx import LimitedTransport
from slidegate.ops.cli import run
from slidegate.web.config import OF_LIMITER

from ..asgi import attempt, call, hello, page, scope_of, send_scope
from ..redis_servers import until
from ..remote_stores import RemoteStore
from ..test_messages import message_of
from .middlewares import FORMS, Odd, operators

MESSAGES = Path(__file__).with_name("messages.txt")
FILE_MESSAGES = Path(__file__).with_name("file_messages.txt")
TABLE = '[[rules]]\npath = "/a"\nlimits = "5/minute"\n'
TABLES = {"RULE": TABLE, "NAMED": f'{TABLE}name = "x"\n', "BANS": "[bans.s]\n"}


def middleware(**options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(hello, **options)


def bans(**options: Any) -> RateLimitMiddleware:
    return middleware(bans=BanPolicy(**options))


async def never(status: int) -> bool:
    return False


async def rows() -> Any:
    yield "a"


class Application:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Windows(RemoteStore):
    """A store that counts no permits."""

    permits_held = Store.permits_held  # type: ignore[assignment]


OWN = [call, hello, middleware, bans, never, rows, page, Application, Windows, Starlette, FastAPI, LimitedTransport]
OWN += [GZipMiddleware, Middleware, Mount, Route]
NAMES = {
    **{name: getattr(slidegate, name) for name in slidegate.__all__},
    **{known.__name__: known for known in OWN},
    "FORMS": FORMS,
    "REQUEST": Request(scope_of()),
    "run": asyncio.run,
    "RULE": Rule("*", "5/minute"),
    "TOOLS": slidegate.mcp_tool("search", "export", validated=True),
}


def test_each_value_that_cannot_work_is_refused_with_what_would(
    tmp_path: Path, texts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    operators(Path())
    names = {**NAMES, "ASN": slidegate.network("asn.mmdb")}
    texts(MESSAGES, ">>> ", lambda expression: message_of(expression, names))


def test_a_mistake_in_a_file_is_named_with_what_was_expected(tmp_path: Path, texts: Callable[..., None]) -> None:
    operators(tmp_path)
    (tmp_path / "blocked.netset").write_text("192.0.2.0/24\n", "utf-8")

    def read(written: str) -> str:
        return f"slidegate.toml: {refusal(eval(written, dict(TABLES)), tmp_path)}".replace(f"{tmp_path}/", "")

    texts(FILE_MESSAGES, "toml ", read)


FITTING = [lambda a: None, lambda a, b=None, *more, c=None: None, partial(lambda a, b: None, b=1), never, Odd(print)]
FITTING += [lambda *a: a, print]
OTHERS = [lambda: None, lambda a, b: None, lambda a, *, b: None, partial(lambda a, b, c: None, 1), lambda a, b, c: None]


@pytest.mark.parametrize("make", [partial(Rule, "/a"), RateLimit], ids=["rule", "endpoint"])
@pytest.mark.parametrize("option", ["limits", "key", "cost", "when"])
def test_a_function_of_other_parameters_is_refused_at_once(option: str, make: Callable[..., object]) -> None:
    for function in FITTING:
        make(**{"limits": "5/minute", option: function})
    for function in OTHERS:
        with pytest.raises(ConfigurationError, match=f"^{option}: expected a function of .* which takes "):
            make(**{"limits": "5/minute", option: function})


# -- what cannot be made ends the start of its server ------------------------------------------------------------------


BOUND_S = 120
"""How long a hang may last; a server that starts on a busy machine takes some seconds."""


class Strict(RateLimitMiddleware):
    """A middleware of somebody's own, whose constructor goes on after ours."""

    def __init__(self, app: Any, *, limits: str) -> None:
        super().__init__(app, limits=limits)
        self.tightest = min(limit.amount for rule in self.rules for limit in rule.limits)


class Around(GZipMiddleware):
    """A middleware of somebody's own, which makes a middleware around what it is given."""

    def __init__(self, app: Any) -> None:
        super().__init__(RateLimitMiddleware(app, limits="ten/minute"))


FROM_FILE = RateLimitMiddleware.from_file
TEN, FIVE = 'limits = "ten/minute"', 'limits = "5/minute"'
LOST = 'store = "lmdb:///dev/null/middleware"\nlimits = "5/minute"'
ADDITIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "limits": (RateLimitMiddleware, {"limits": "ten/minute"}, "'ten/minute'"),
    "an option": (RateLimitMiddleware, {"limit": "5/minute"}, "unknown option 'limit'"),
    "a subclass": (Strict, {"limits": "ten/minute"}, "'ten/minute'"),
    "another's": (Around, {}, "'ten/minute'"),
    "a factory": (lambda app: RateLimitMiddleware(app, limits="ten/minute"), {}, "'ten/minute'"),
    "no file": (FROM_FILE, {"path": None}, "slidegate.toml"),
    "a bad file": (FROM_FILE, {"path": TEN}, "ten/minute"),
    "a store in a file": (FROM_FILE, {"path": LOST}, "/dev/null/middleware"),
    "an option beside a file": (FROM_FILE, {"path": FIVE, "on_refused": 7}, "on_refused: expected a function of "),
    "limits beside a file": (FROM_FILE, {"path": FIVE, "limits": "2/hour"}, "write limits into the file, not beside"),
}
"""A middleware, its options (a path stands for a file with that text), and a part of the message."""


def add(app: Any, what: str, directory: Path) -> str:
    kind, options, part = ADDITIONS[what]
    if "path" in options:
        path = directory / "slidegate.toml"
        if options["path"] is not None:
            path.write_text(options["path"], "utf-8")
        options = {**options, "path": path}
    app.add_middleware(GZipMiddleware)  # ours is around it
    app.add_middleware(kind, **options)
    return part


async def started(app: Any) -> tuple[list[Any], Exception | None]:
    async with asyncio.timeout(BOUND_S):
        answer, error = await attempt(app, type="lifespan", state={})
    return answer.messages, error


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@pytest.mark.parametrize("what", ADDITIONS)
async def test_what_cannot_be_made_ends_the_start_or_each_request(what: str, framework: Any, tmp_path: Path) -> None:
    served, app = Starlette(routes=[Route("/", page)]), framework()
    part = add(app, what, tmp_path)
    said, error = await started(app)
    assert [message["type"] for message in said] == ["lifespan.startup.failed"]
    assert part in said[0]["message"]
    assert error is not None
    assert str(error) in said[0]["message"]
    lengths = []
    for _ in range(3):
        with pytest.raises(ConfigurationError) as caught:
            await send_scope(app, scope_of("/"))
        assert caught.value is error
        lengths.append(len(caught.traceback))
    assert lengths[0] == lengths[-1], "each request makes the traceback longer"
    add(served, what, tmp_path)
    for target, path in ((served, "/"), (Starlette(routes=[Mount("/below", served)]), "/below/")) * 2:
        with pytest.raises(ConfigurationError, match=re.escape(part)):
            await send_scope(target, scope_of(path))


async def test_options_without_their_names_end_the_start() -> None:
    app = Starlette(middleware=[Middleware(RateLimitMiddleware, "5/minute")])  # type: ignore[arg-type]
    said, error = await started(app)
    assert said[0]["message"] == f"TypeError: {error}"


SERVERS = {
    "uvicorn": ["uvicorn", "site_app:app", "--port", "0"],
    # Where hypercorn 0.18 has workers, it loses the code with which they ended, whatever was wrong.
    "hypercorn": ["hypercorn", "site_app:app", "--workers", "0", "--bind", "127.0.0.1:0"],
    "granian": ["granian", "site_app:app", "--interface", "asgi", "--port", "0"],
}


@pytest.mark.parametrize("server", ["uvicorn", *(pytest.param(one, marks=pytest.mark.all) for one in [*SERVERS][1:])])
def test_a_server_with_a_broken_configuration_ends_with_its_message(server: str, tmp_path: Path) -> None:
    (tmp_path / "site_app.py").write_text(
        "from starlette.applications import Starlette\nfrom slidegate import RateLimitMiddleware\n"
        'app = Starlette()\napp.add_middleware(RateLimitMiddleware, limits="ten/minute")\n',
        "utf-8",
    )
    command = [sys.executable, "-m", *SERVERS[server]]
    ended = subprocess.run(command, cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True, timeout=BOUND_S, check=False)
    assert ended.returncode != 0, ended.stdout
    assert "ten/minute" in ended.stdout


def codes(found: RateLimitMiddleware) -> list[str]:
    return [finding.code for finding in found.findings]


# -- several processes -------------------------------------------------------------------------------------------------


SERVED = """
import os, uvicorn
from slidegate import RateLimitMiddleware

async def inner(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        found = [finding.message for finding in app.findings if finding.code == "SG103"]
        with open(os.environ["SAID"], "a") as said:
            said.write(f"{found}\\n")
        await send({"type": "lifespan.startup.complete"})
        await receive()

app = RateLimitMiddleware(inner, limits="9/minute")
if __name__ == "__main__":
    uvicorn.run("served:app", port=0, workers=int(os.environ["COUNT"]), log_config=None)
"""
WITH_WORKERS = {"uvicorn.run": ["served.py"], "hypercorn -c": ["-m", "hypercorn", "-c", "hypercorn.toml", "served:app"]}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="other systems do not show the children of a process")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("server", WITH_WORKERS)
def test_workers_that_no_argument_names_see_each_other(server: str, count: int, tmp_path: Path) -> None:
    said = tmp_path / "said"
    (tmp_path / "served.py").write_text(SERVED)
    (tmp_path / "hypercorn.toml").write_text(f'workers = {count}\nbind = "127.0.0.1:0"\n')
    environment = {**os.environ, "SAID": str(said), "COUNT": str(count), "PYTHONPATH": os.pathsep.join(sys.path)}
    started = Popen([sys.executable, *WITH_WORKERS[server]], cwd=tmp_path, env=environment, stderr=DEVNULL)
    try:
        until(lambda: said.exists() and said.read_text().count("\n") == count, "all workers have started")
    finally:
        started.send_signal(SIGINT)
        started.wait(120)
    lines = said.read_text().splitlines()
    assert any(f"with 2 workers below process {started.pid} a client" in line for line in lines) is (count == 2)


# -- a middleware that is built for each route -------------------------------------------------------------------------


@pytest.mark.parametrize("limiter", [None, Limiter()])
@pytest.mark.parametrize("of_rule", [{}, {"name": "api"}])
@pytest.mark.parametrize("more", [{}, {"default_limits": "9/minute"}, {"name": "site"}])
async def test_the_third_middleware_of_the_same_options_that_counts_apart_is_found(
    limiter: Limiter | None, of_rule: dict[str, Any], more: dict[str, Any]
) -> None:
    rules = [Rule("*", "9/minute", **of_rule)]
    if limiter is not None:
        await limiter.reset_all()
    built = [RateLimitMiddleware(hello, rules=rules, limiter=limiter, **more) for _ in range(4)]
    for one in built:
        fields = (await call(one)).headers["ratelimit"]
    assert ["SG131" in codes(one) for one in built] == [False, False, "r=8" in fields, False]
    again = [RateLimitMiddleware(hello, rules=list(rules), limiter=limiter, **more) for _ in range(3)]
    assert "SG131" not in codes(again[2])


# -- the configuration file, and what its JSON Schema says of mistakes -------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = ROOT / "examples" / "slidegate.toml"
EVERYTHING_MADE = Path(__file__).with_name("everything.txt")
"""The rules and policies that it makes."""


def test_everything_can_be_written_in_the_file(texts: Callable[..., None]) -> None:
    app = RateLimitMiddleware.from_file(hello, EVERYTHING).app
    made: dict[str, Any] = {repr(one): one for one in (*app.rules, *app.policies)}
    usual = {type(one): vars(one) for one in (Rule("/", "1/s"), BanPolicy())}

    def described(name: str) -> str:
        """Return the attributes that are not as by default; those of a method are its object's."""
        if name == "file":
            return "\n".join(made)
        found = {at: getattr(value, "__self__", value) for at, value in vars(made[name]).items()}
        left_out = ("label", "rule_paths", "strikes")  # follow from the others
        own = [at for at, value in found.items() if at not in left_out and value != usual[type(made[name])][at]]
        return "\n".join(f"{at}: {found[at]!r}" for at in own)

    texts(EVERYTHING_MADE, "> ", described)


FILES = sorted((ROOT / "examples").rglob("*.toml"))
EXAMPLE = EVERYTHING.read_bytes()
WHOLE = tomllib.loads(EXAMPLE.decode())
SCHEMA = json_schema()
OBJECTS = [SCHEMA, *SCHEMA["$defs"].values()]
KEYS = sorted({key for table in OBJECTS for key in table["properties"]})


def accepts(document: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


def toml(value: object) -> str:
    """Write a value as it stands in a file."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def mistake(document: dict[str, Any], directory: Path) -> str:
    """Return the error about a document, or an empty text."""
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


def test_the_committed_schema_and_page_are_those_that_the_definitions_make() -> None:
    assert make_configuration.main(["--check"]) == 0, "run python scripts/make_configuration.py"


PAGE = (ROOT / "docs" / "guides" / "configuration.md").read_text("utf-8")
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
        "unknown option|not an option|is missing|everyone> does not|expected (a table|True or False|one of header)"
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
    assert [key for key in KEYS if not re.search(rf"^slidegate\.toml: \S*\b{key}\b", said, re.MULTILINE)] == []


# -- files with any mistake --------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.booleans() | st.integers() | st.floats() | words | st.sampled_from(["client", "5/minute", "*", "/a", "1h"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def key_paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all values in a document."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, one in items for inner in key_paths(one, (*path, key)))][not path :]


@given(
    st.sampled_from(key_paths(WHOLE)), st.sampled_from(["replace", "delete", "rename"]), values, st.sampled_from(KEYS)
)
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_with_other_bytes_is_read_or_refused(tmp_path: Path, at: int, written: bytes, cut: int) -> None:
    refusal(EXAMPLE[:at] + written + EXAMPLE[at + cut :], tmp_path)
