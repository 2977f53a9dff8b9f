"""Whatever a client sends or a function raises is one printable line in the log, and is read in little time."""

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import Message

from slidegate import BanPolicy, ConfigurationError, Limiter, RateLimitMiddleware, Rule, path_param, strike
from slidegate.core import logs, parse_duration_us, parse_limits
from slidegate.core.addresses import canonical_key, parse_network
from slidegate.core.events import Event
from slidegate.core.logs import MAX_CHARS, Throttle, escaped
from slidegate.limiter.aio import in_background, to_the_end
from slidegate.networks.lists import read_entries
from slidegate.networks.mcp import mcp_tool
from slidegate.ops.replay.logs import parse_line
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.web.client_ip import client_ip, read_node, split_forwarded, split_list
from slidegate.web.keys import cookie, header, query
from slidegate.web.visit import Visit
from slidegate.web.waiting import ReadAhead

from .asgi import call, hello, page, scope_of
from .remote_stores import SlowStore
from .virtual_time import turns

EVIL = "x\r\nERROR root: you are hacked\x1b[2J\x1b]0;title\x07\u202e\u2028\x85\x00\udcff" + "A" * 9_000


def check(caplog: pytest.LogCaptureFixture, expected: str) -> None:
    """See that something was logged about `expected`, and every message is one printable line of ours."""
    found = [record.getMessage() for record in caplog.records if record.name.startswith("slidegate")]
    assert any(expected in message for message in found), found
    for message in found:
        assert message.startswith("slidegate: "), message
        assert message.isprintable(), repr(message)
        assert len(message) <= MAX_CHARS + 200


RAISED = EVIL.replace("\udcff", "")
"""The text of errors: their traceback is Python's, and pytest-xdist cannot send half of a character."""


class Evil(Exception):
    def __str__(self) -> str:
        return RAISED

    def __repr__(self) -> str:
        return RAISED


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def failing(error: type[Exception]) -> Callable[..., Any]:
    def function(*arguments: object) -> Any:
        try:
            {}[RAISED]
        except KeyError as cause:
            fault = error(RAISED)
            fault.add_note(RAISED)
            raise fault from cause

    return function


@pytest.mark.parametrize("error", [Evil, Mute, ValueError, KeyError, lambda text: ExceptionGroup(text, [Evil(text)])])
@pytest.mark.parametrize("what", ["limits", "key", "cost", "count_if", "on_refused"])
async def test_functions_of_the_users(what: str, error: Any, caplog: pytest.LogCaptureFixture) -> None:
    function: Any = failing(error)
    limits = function if what == "limits" else "1/hour"
    options = {what: function} if what in ("key", "cost", "count_if") else {}
    refused = {what: function} if what == "on_refused" else {}
    middleware = RateLimitMiddleware(hello, rules=[Rule("*", limits, name="xy", **options)], **refused)
    for _ in range(2):
        await call(middleware)
    check(caplog, f"{what} function of 'xy' failed")


async def test_bans_strikes_and_shadows(caplog: pytest.LogCaptureFixture) -> None:
    name = f"user:{EVIL}".replace("\udcff", "")  # with half of a character, it would be refused or digested
    observer = RecordingObserver()
    limiter = Limiter(observers=[observer, failing(Evil)])

    async def page(request: Any) -> Any:
        await strike(request, "ban", EVIL)
        return PlainTextResponse("hi")

    rules = [Rule("*", "1/hour", key=lambda request: name[:60], shadow=True, name="shadow")]
    policies = [BanPolicy("9/10m", "1h", name="p")]
    middleware = Middleware(RateLimitMiddleware, rules=rules, limiter=limiter, bans=policies)
    app = Starlette(routes=[Route("/", page)], middleware=[middleware])
    for number in (1, 2):
        await call(app, client=(f"198.51.100.{number}", 1))
    await limiter.ban(name[:64], "1h", reason=EVIL, by=EVIL)
    await limiter.unban(name[:64], by=EVIL)
    limiter.store.observe(failing(Evil))
    limiter.store.observers.tell(Event("store_reset", EVIL))
    for said in ("is banned until", "store_reset: x\\r\\nERROR root", "failed"):
        check(caplog, said)
    assert sum(" failed" in message for message in caplog.messages) == 2, "of both observers, once each"
    assert {*observer.kinds} >= {"banned", "unbanned", "shadow_refused"}
    assert all(event.message.isprintable() for event in observer.events if event.kind != "store_reset")


async def test_a_store_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    store, observer = SlowStore(FakeClock()), RecordingObserver()
    store.error = Evil(RAISED)
    middleware = RateLimitMiddleware(hello, limits="9/hour", limiter=Limiter(store, observers=[observer]))
    for _ in range(4):
        await call(middleware)
    check(caplog, "store_failed")
    assert all(event.message.isprintable() for event in observer.events)


async def test_work_in_the_background_that_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a tool watches all tasks: none of ours ends with an exception."""

    async def work() -> None:
        raise Evil(RAISED)

    monkeypatch.setattr(logs, "_failures", Throttle())  # another test may just have had such a line
    tasks = [in_background(work()) for _ in range(3)]
    with pytest.raises(Evil):
        await to_the_end(work())
    assert [task.exception() for task in tasks if task is not None] == [None] * 3
    check(caplog, "work in the background failed")
    assert [record.name for record in caplog.records] == ["slidegate"], "once for all three"


@pytest.mark.parametrize("fails", [True, False])
async def test_reads_ahead_for_no_application_are_not_logged(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def receive() -> Message:
        if not fails:
            await anyio.sleep_forever()
        raise Evil(RAISED)

    async def send(message: Message) -> None:
        pass

    ahead = ReadAhead(receive)
    policy = RateLimitMiddleware(hello).policy
    visit = Visit(policy, scope_of(), ahead, send, policy.clients.of(scope_of()), policy.rules.nothing)
    for _ in range(2):
        ahead.begin()
        await turns()
    ahead.end(visit, None)
    await turns()
    gc.collect()
    assert caplog.records == []


@given(st.text(alphabet=st.characters(), max_size=80), st.integers(2, 60))
def test_escaped_text_is_printable_and_bounded_and_good_text_stays(text: str, most: int) -> None:
    found = escaped(text, most)
    assert found.isprintable()
    assert len(found) <= most
    if text.isprintable() and len(text) <= most:
        assert found is text
    elif len(text) <= most and "\u2026" not in found:
        assert found == "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# -- whatever reads text takes time in proportion to its length --------------------------------------------------------

# The texts are those that make readers slow: runs of one character and of two, behind every beginning that a reader may
# already have agreed to, and closed in the ways in which such a run may end. What is measured is processor time of this
# process, and only how it grows: eight times the text may take at most 32 times as long, which is a factor of four of
# room, and a half of what a quadratic reader takes.


SHORT, LONG = 2_000, 16_000
SUSPICIOUS_S = 0.05
"""A reader that is done with a long text in this time need not be measured twice."""
PIECES = (*" \t\n,;:/@#.=-+|%\"\\'[](){}<>10axé\0", "a.", "1.", "[1,", "a=1\n", "per", "for=", "deny 1;", "::", "\r\n")
ENDS = ("", "x")
Reader = Callable[[str], object]


def entries(text: str) -> None:
    for _, entry in read_entries(text.splitlines(keepends=True)):
        with suppress(ConfigurationError):
            parse_network(entry)


ROUTES = [Route("/a", page), Route("/items/{id}", page), Mount("/v1", routes=[Route("/{x}/b", page)])]
RULES = [
    *(Rule(path, "9999/minute") for path in ("/a", "/v1/{x}/b", "/{x:float}", "/z{x:uuid}", "/{y}/{rest:path}")),
    Rule("/items/{id:int}", "9999/minute", key=path_param("id")),
    Rule("/{x}/ok", exempt=True),
    Rule("*", "99999/minute"),
]
HONEYPOT = BanPolicy("9999/m", "1h", signals={"/.env": 1})
MIDDLEWARES = [
    RateLimitMiddleware(app, rules=RULES, default_limits="99999/minute", bans=HONEYPOT)
    for app in (Starlette(routes=ROUTES), hello)
]


def path(text: str) -> None:
    """Ask middlewares, one of which knows the routes behind it."""
    for middleware in MIDDLEWARES:
        answer = asyncio.run(call(middleware, text))
        assert text.endswith("/ok") or answer.headers["ratelimit"]


FIELDS = ("authorization", "host", "cookie", "mcp-name", "x-forwarded-for", "forwarded")
KEYS = [header("Authorization"), header("Host"), cookie("a"), query("a"), mcp_tool("a", validated=True)]
KEYS += [client_ip(1), client_ip(["203.0.113.0/24"], header="forwarded")]
TOOL_CALL = [(b"mcp-protocol-version", b"2026-07-28"), (b"mcp-method", b"tools/call")]


def keys(text: str) -> None:
    value = text.encode()
    scope = scope_of(
        method="POST", query_string=value, headers=[*((one.encode(), value) for one in FIELDS), *TOOL_CALL]
    )
    for key in KEYS:
        key.read(scope, Limiter(), "client")


OF_LOGS = ("192.0.2.7 - - [", "{", '{"msec":"', '{"http_', "<13>Jan 1 ", "<13>1 a b c d e [", "1 - [", "2024-05-12 ")
OF_LOGS += ("192.0.2.7, ", '192.0.2.7 - - [12/May/2024:00:00:17 +0000] "', '2024-05-12 00:00:17 192.0.2.7 - "')
READERS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "path": (path, ("", "/a", "/items/", "/v1/x/b")),
    "limits": (parse_limits, ("", "5/", "5 per ", "a:", "a: 5/minute", "5/minute;", "5/minute @")),
    "duration": (parse_duration_us, ("", "5", "5 s")),
    "forwarded": (lambda text: list(split_forwarded(text)), ("", "for=", 'for="', "for=1.2.3.4;", "for=1.2.3.4,")),
    "list of addresses": (lambda text: list(map(read_node, split_list(text))), ("", "[", '"', "1.2.3.4,")),
    "node": (read_node, ("", "[", '"', "1.2.3.4:")),
    "network": (parse_network, ("", "192.0.2.0/", "::", "2001:db8::/", "fe80::1%")),
    "key": (canonical_key, ("x", "192.0.2.0/", "2001:db8::/")),
    "access log": (parse_line, ("", *OF_LOGS)),
    "keys": (keys, ("", "a=", 'a="', "Basic ", "Bearer eyJ", "=?base64?")),
}
READERS["list"] = entries, ("", "192.0.2.7 ", "192.0.2.7 1 ", "192.0.2.0 -")


def hostile(beginning: str, length: int) -> Iterator[str]:
    """Yield long texts with one beginning, in an order that does not depend on the length."""
    pairs = [left + right for left, right in itertools.combinations('a1 ,;"\\', 2)]
    for piece, end in itertools.product((*PIECES, *pairs), ENDS):
        yield beginning + piece * (length // len(piece)) + end


def seconds(read: Reader, text: str) -> float:
    start = time.process_time()
    with suppress(ConfigurationError):
        read(text)
    return time.process_time() - start


@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_time_in_proportion_to_the_text(reader: str) -> None:
    read, beginnings = READERS[reader]
    for beginning in beginnings:
        for short, long in zip(hostile(beginning, SHORT), hostile(beginning, LONG), strict=True):
            if seconds(read, long) > SUSPICIOUS_S:
                grown = min(seconds(read, long) for _ in range(3)) / min(seconds(read, short) for _ in range(3))
                assert grown < 32, f"{long[:60]!r}… takes {grown:.0f} times as long as an eighth of it"
