"""A limit on a path counts whatever a router or pydantic takes for it, and an exemption only its own text."""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from random import Random
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.convertors import StringConvertor
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Host, Mount, Route, compile_path

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    header,
    path_param,
)
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import call, hello, page, scope_of, send_scope, statuses
from .frameworks import with_root

PLENTY = "1000000/minute"


async def names(app: Any, path: str, method: str = "GET", **more: Any) -> list[str]:
    """Return the names of the limits that one request was counted on."""
    policy = (await call(app, path, method, raw_path=b"/", **more)).headers.get("ratelimit-policy", "")
    return [item.split('"')[1] for item in policy.split(", ") if item]


async def uncounted(rule: Rule, texts: Iterable[str], app: Any = hello) -> list[str]:
    """Return those paths that a rule does not count."""
    middleware = RateLimitMiddleware(app, rules=[rule])
    return [text for text in texts if await names(middleware, text) == []]


# -- random templates, and what Starlette's own routes take for them ---------------------------------------------------

KINDS = ["", ":str", ":int", ":float", ":uuid"]
LITERALS = ["", "", "_", "-", ".", "v", "5", "x", "e", "+", "\u00e9", "0", "inf", "a-b", "(", " "]
SOME_UUID = "0b4f2a9e-3c1d-4e5f-8a6b-7c8d9e0f1a2b"
TEXTS = {
    "": ["a", "5", "a_b", "1_2", "v.1", "-", "_", "x5", "55", "\u00e9", " ", "a b", "{", "5e5"],
    ":int": ["0", "5", "55", "05", "123", "5055"],
    ":float": ["0", "5", "5.5", "05.50", "55"],
    ":uuid": [SOME_UUID, SOME_UUID.replace("-", ""), SOME_UUID.upper()],
    ":path": ["", "a", "a/b", "5/", "a//b", "5_5/x"],
}


def template(random: Random, most: int) -> str:
    """Return a random path in Starlette's syntax, with at most so many parameters in one segment."""
    path, number = "", 0
    for _ in range(random.randint(1, 3)):
        segment = ""
        for _ in range(random.randint(0, most)):
            number += 1
            around = random.choices(LITERALS, k=2) if most > 1 else ("", "")
            segment += f"{around[0]}{{p{number}{random.choice(KINDS)}}}{around[1]}"
        path += f"/{segment or 'here'}"
    path = path.replace(".+", "+.")  # a rule refuses the other order: it looks like a regular expression
    return f"{path}/{{rest:path}}" if random.random() < 0.1 else path


def texts_of(written: str, random: Random, count: int) -> Iterator[str]:
    """Yield paths that Starlette matches to a template."""
    pattern = compile_path(written)[0]
    parts = written.replace("}", "{").split("{")
    for _ in range(count):
        path = parts[0]
        for parameter, literal in zip(parts[1::2], parts[2::2], strict=True):
            kind = parameter[parameter.find(":") :] if ":" in parameter else ""
            path += random.choice(TEXTS[kind.removesuffix("str").removesuffix(":") or ""]) + literal
        if pattern.match(path):
            yield path


@pytest.mark.parametrize("most", [1, 3, 4])
@settings(max_examples=200)
@given(random=st.randoms(use_true_random=False))
async def test_parameters_alone_and_beside_text_count_what_starlette_matches(most: int, random: Random) -> None:
    """At most so many parameters stand in one segment."""
    written = template(random, most)
    middleware = RateLimitMiddleware(Starlette(routes=[Route(written, page)]), rules=[Rule(written, PLENTY, name="it")])
    for path in dict.fromkeys(texts_of(written, random, 8)):
        answer = await call(middleware, path, raw_path=b"/")
        assert (answer.status, "ratelimit-policy" in answer.headers) == (200, True), (written, path)


# -- what pydantic takes for a number or a UUID ------------------------------------------------------------------------

SHORT = "0159eE+-._infaINFty "


def accepted(kind: type, texts: Iterable[str]) -> Iterator[str]:
    validate = TypeAdapter(kind).validate_python
    for text in texts:
        try:
            validate(text)
        except ValidationError:
            continue
        yield text


def short(length: int) -> Iterator[str]:
    return map("".join, product(SHORT, repeat=length))


def uuids(random: Random, count: int) -> Iterator[str]:
    """Yield texts that are nearly, or really, UUIDs."""
    for _ in range(count):
        text = UUID(int=random.getrandbits(128))
        spelt = random.choice([str(text), text.hex, str(text).upper(), text.urn, text.urn.upper(), f"{{{text}}}"])
        for _ in range(random.choice([0, 0, 1, 2])):
            at = random.randint(0, len(spelt))
            spelt = spelt[:at] + random.choice(["-", "{", "}", "urn:", "uuid:", " ", ""]) + spelt[at:]
        yield spelt


async def untaken(kind: type, texts: Iterable[str]) -> list[str]:
    """Return those texts that FastAPI takes for a parameter of a kind, and a rule does not."""
    rule = Rule(f"/f/{{v:{kind.__name__.lower()}}}", PLENTY)
    taken = [f"/f/{text}" for text in accepted(kind, texts)]
    assert len(taken) > 5
    return await uncounted(rule, taken)


async def test_a_number_counts_every_short_text_that_fastapi_takes_for_it() -> None:
    texts = [text for length in (1, 2, 3) for text in short(length)]
    assert await untaken(int, texts) == []
    odd = ["_inf", "+_inf", "1.5E_+0", "_nan", "i_nf", "1e-5", "-inf", "+nan"]
    assert await untaken(float, [*odd, *(text for text in texts if not text.strip(" +-").startswith("_"))]) == []


async def test_a_number_counts_what_fastapi_takes_for_it_between_blanks() -> None:
    blanks = [chr(code) for code in range(0x3001) if chr(code).isspace()]
    for kind, text in ((int, "5"), (float, "5.5"), (float, "nan"), (float, "-Infinity")):
        assert await untaken(kind, [f"{blank}{text}{blank}" for blank in blanks]) == []


async def test_a_uuid_counts_every_spelling_that_fastapi_takes_for_it() -> None:
    assert await untaken(UUID, uuids(Random(5), 2_000)) == []


# -- one path, many spellings ------------------------------------------------------------------------------------------

LOGIN = Route("/login", page)


def site(*routes: BaseRoute) -> Starlette:
    return Starlette(routes=routes)


def rooted(root: str, *routes: BaseRoute) -> FastAPI:
    app = with_root(root)
    app.router.routes.extend(routes)
    return app


TENANT = Mount("/{tenant}", rooted("/api", LOGIN))
CASES: list[tuple[Any, str, str, str]] = [
    # Application, path of the rule, path and root_path of the request.
    (site(Mount("/", rooted("/api", LOGIN))), "/login", "/login", ""),
    (site(Mount("/", rooted("/api", LOGIN))), "/login", "/api/login", "/api"),
    (site(Host("{any}.org", rooted("/api", LOGIN))), "/login", "/login", ""),
    (site(TENANT), "/{tenant}/login", "/api/login", ""),
    (site(Mount("/v1", routes=[Mount("/{shop}", routes=[LOGIN])])), "/v1/{shop}/login", "/v1/a/login", ""),
]


@pytest.mark.parametrize(("app", "written", "path", "root"), CASES)
async def test_limits_and_honeypots_hold_where_a_mounted_application_has_a_root(
    app: Any, written: str, path: str, root: str
) -> None:
    more: dict[str, Any] = {"root_path": root, "headers": {"host": "example.org"}}
    middleware = RateLimitMiddleware(app, rules=[Rule(written, "1/minute")])
    assert await statuses(middleware, 2, path, **more) == [200, 429]
    middleware = RateLimitMiddleware(app, rules=[], bans=BanPolicy(signals={written: "ban"}))
    assert 403 not in await statuses(middleware, 1, "/elsewhere", **more)
    assert await statuses(middleware, 1, path, **more) == [403]


AT_LOGIN = Route("/login", RateLimit("1/minute")(page))
MISSED: list[tuple[Any, str, str, str]] = [
    (site(AT_LOGIN), "/api/login", "/api/login", "/api"),
    (site(Mount("/", rooted("/api", AT_LOGIN))), "/login", "/api/login", ""),
    (site(Host("example.org", rooted("/api", AT_LOGIN))), "/login", "/api/login", ""),
    (site(Mount("/{tenant}", rooted("/api", AT_LOGIN))), "/{tenant}/x/login", "/api/login", ""),
    (site(Mount("/v1", rooted("/v1", AT_LOGIN))), "/v1/v1/login", "/v1/login", ""),
]


@pytest.mark.parametrize(("app", "written", "path", "root"), MISSED)
async def test_where_a_rule_by_path_misses_because_an_application_reads_another_one_a_limit_at_the_endpoint_holds(
    app: Any, written: str, path: str, root: str
) -> None:
    middleware = RateLimitMiddleware(app, rules=[Rule(written, "1000/minute", name="it")])
    answers = [await call(middleware, path, root_path=root, headers={"host": "example.org"}) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert "it" not in answers[0].headers["ratelimit-policy"]


LONG = [f"/{'./' * 3_000}x", f"/{'./' * 1_100}x", f"/x/{'/' * 2_100}y"]


@pytest.mark.parametrize("path", LONG, ids=len)
async def test_an_odd_path_that_is_long_meets_every_limit_and_block_of_its_method_and_no_honeypot(path: str) -> None:
    rules = [
        Rule("/x/{y}", exempt=True),
        Rule("/{rest:path}", exempt=True),
        Rule("/login", PLENTY, name="it"),
        Rule("/other", PLENTY, name="other", methods=["GET"]),
        Rule("/posts", PLENTY, name="posts", methods=["POST"]),
    ]
    assert await names(RateLimitMiddleware(hello, rules=rules), path) == ["it", "other"]
    blocking = RateLimitMiddleware(hello, rules=[Rule("/nowhere", block=True)])
    assert (await call(blocking, path, raw_path=b"/")).status == 403
    trapped = RateLimitMiddleware(hello, rules=[], bans=BanPolicy(signals={"/x": "ban", "/x/y": "ban"}))
    assert await statuses(trapped, 2, path, raw_path=b"/") == [200, 200]


async def test_a_middleware_inside_of_an_application_reads_paths_without_its_root() -> None:
    app = with_root("/api")
    app.get("/health")(lambda: "ok")
    app.add_middleware(RateLimitMiddleware, rules=[Rule("/health", exempt=True), Rule("*", "1/minute")])
    assert [await statuses(app, 3, path) for path in ("/health", "/api/health")] == [[200] * 3] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"rules": [Rule("/a", exempt=True), Rule("/a", "1/minute", name="a")]},
        {"rules": [Rule("/a", "1/minute", when=lambda request: True)]},
        {"default_limits": "2/minute"},
    ],
)
async def test_what_fails_while_rules_are_chosen_is_no_way_past_them(
    options: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    middleware = RateLimitMiddleware(hello, **options, bans=BanPolicy())
    assert (await call(middleware, "/b")).status == 200
    odd = {**scope_of("/a"), "path": object()}  # no server sends such a path
    assert [(await send_scope(middleware, {**odd})).status for _ in range(2)] == [200, 429]
    await middleware.limiter.ban("203.0.113.9", "1h")
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert (await send_scope(middleware, {**odd})).status == 403
    lines = [record.getMessage() for record in caplog.records if "selecting rules failed" in record.getMessage()]
    assert [line.rpartition("=")[2] for line in lines] == ["0)", "1)"], "odd requests fill no log"


ODD: list[dict[str, Any]] = [
    *({"path": path} for path in (5, None, b"/a", ["/a"])),
    *({"method": method} for method in (None, b"POST", 5, ["GET"])),
    *({"root_path": root} for root in (None, b"", b"/api", ["/api"])),
    *({"client": (host, 1)} for host in (5, b"203.0.113.9", None, ["203.0.113.9"])),
    *({"client": client} for client in (5, "", [], ["203.0.113.9"], {}, {"host": "203.0.113.9"}, object)),
    *({"client": None, "server": server} for server in (5, "", [], {"port": 80}, ("127.0.0.1",))),
    *({"extensions": extensions} for extensions in (5, None, ["websocket.http.response"])),
    {"headers": [(b"x-api-key", bytearray(b"k"))]},
]
"""What no server should send, and an adapter might."""


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_scope_with_odd_values_is_a_counted_request(odd: dict[str, Any], kind: str) -> None:
    rules = [
        Rule("/free", exempt=True, methods=["GET"]),
        Rule("/a", "2/minute", key=header("X-API-Key"), name="a"),
        Rule("/{page}", "2/minute", key=path_param("page"), name="page"),
        Rule("*", "9/minute", methods=["GET", "POST"], name="all"),
    ]
    heard = RecordingObserver()
    limiter, bans = Limiter(observers=[heard]), BanPolicy(signals={"/trap": "ban"})
    middleware = RateLimitMiddleware(hello, rules=rules, limiter=limiter, bans=bans)
    scopes = [scope_of("/a", type=kind) for _ in range(3)]
    for scope in scopes:
        scope.update({"extensions": {"websocket.http.response": {}}, **odd})
        await send_scope(middleware, scope)
    assert [bool(scope["slidegate"].decision) for scope in scopes] == [True, True, False]
    assert "refused" in heard.kinds


# -- a key of a typed parameter is its value ---------------------------------------------------------------------------


SIGNS, SPACES = st.sampled_from(["", "", "+", "-"]), st.sampled_from(["", "", "", " ", "\t"])
DIGITS = st.sampled_from(["5", "5", "05", "_5", "10", "1_0", "10_"])
ZEROS = st.sampled_from(["", "", "0", "00", "0_0", "0_", "_0"])
ENDS = st.sampled_from(["", "", ".", ".0", ".0_"])
INTS = st.builds("".join, st.tuples(SPACES, SIGNS, ZEROS, SIGNS, DIGITS, ENDS, SPACES))
# An exponent that begins with an underscore is no number for a rule yet.
EXPONENTS = st.builds("".join, st.tuples(st.sampled_from("eE"), SIGNS, st.text("01", min_size=1, max_size=1), ZEROS))
NUMBERS = st.tuples(SPACES, SIGNS, ZEROS | DIGITS, st.sampled_from(["", "."]), ZEROS | DIGITS, st.just("") | EXPONENTS)
NAMES = st.tuples(SPACES, SIGNS, st.sampled_from(["inf", "Infinity", "1e999"]), SPACES)
FLOATS = st.builds("".join, NUMBERS | NAMES)
IDS = [UUID(int=1), UUID(int=0xABCDEF << 96), UUID("7081965f-0432-4d1f-8a3c-5b9e2d7c6a10")]


def spelled(uuid: UUID, case: Callable[[str], str], form: str) -> str:
    return case(form.format(hyphens=uuid, plain=uuid.hex))


UUIDS = st.builds(
    spelled,
    st.sampled_from(IDS),
    st.sampled_from([str.lower, str.upper]),
    st.sampled_from(["{hyphens}", "{plain}", "urn:uuid:{hyphens}", "{{{hyphens}}}", "{{{plain}}}"]),
)
TYPED: dict[str, tuple[Any, st.SearchStrategy[str]]] = {
    "int": (int, INTS | st.sampled_from(["5", "05", "10", "-5"])),
    "float": (float, FLOATS | st.builds("{}.{}".format, *2 * [st.text("015", min_size=1, max_size=2)])),
    "uuid": (UUID, UUIDS),
}


def typed(by: str, kind: type, served: list[Any], limit: RateLimit | None) -> Any:
    """Return an application whose framework, or whose route, makes a value of a parameter."""

    async def page(request: Request) -> PlainTextResponse:
        served.append(request.path_params["v"])
        return PlainTextResponse("hi")

    async def typed_page(v: Any) -> None:
        served.append(v)

    typed_page.__annotations__["v"] = kind
    if by == "route":
        return site(Route(f"/x/{{v:{kind.__name__.lower()}}}", limit(page) if limit else page))
    app = FastAPI()
    app.get("/x/{v}")(typed_page)
    return app


@pytest.mark.parametrize(("by", "at_the_endpoint"), [("FastAPI", False), ("route", False), ("route", True)])
@pytest.mark.parametrize("kind", [*TYPED])
@given(st.data())
async def test_each_value_has_one_window_whatever_its_spelling(
    by: str, at_the_endpoint: bool, kind: str, data: st.DataObject
) -> None:
    made, spellings = TYPED[kind]
    limiter, bare, served = Limiter(MemoryStore(clock=FakeClock())), list[Any](), list[Any]()
    rule = Rule(f"/x/{{v:{kind}}}", "1/hour", key=path_param("v"))
    limit = RateLimit("1/hour", key=path_param("v")) if at_the_endpoint else None
    read = typed(by, made, bare, None)
    app = RateLimitMiddleware(typed(by, made, served, limit), limiter=limiter, rules=[] if limit else [rule])
    for text in data.draw(st.lists(spellings, min_size=1, max_size=24)):
        if (await call(read, f"/x/{text}")).status != 200:
            continue  # the framework takes it for no value
        known = bare[-1] in served
        assert (await call(app, f"/x/{text}")).status == (429 if known else 200), (text, served)
    if served:
        await limiter.reset(path_param("v").of(served[0]))
        assert (await call(app, f"/x/{served[0]}")).status in (200, 404), "an operator names the value itself"


async def test_a_rule_that_was_made_before_a_framework_changed_its_routers_knows_what_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FastHTML changes Starlette's pattern of a text when it is imported, perhaps after the rules."""
    rule, exempt = Rule("/items/{id}", "1/hour"), Rule("/items/{id}", exempt=True)
    monkeypatch.setattr(StringConvertor, "regex", "[^/]*")
    app = RateLimitMiddleware(hello, rules=[rule])
    assert await statuses(app, 2, "/items/") == [200, 429]
    app = RateLimitMiddleware(hello, rules=[exempt, Rule("*", "1/hour", name="all")])
    assert await statuses(app, 2, "/items/") == [200, 200]
