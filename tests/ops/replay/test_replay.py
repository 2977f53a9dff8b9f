"""The samples of all formats contain the same requests; odd lines and files are counted, and never raise."""

import asyncio
import gzip
import itertools
import json
import re
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule, client_ip, header
from slidegate.core import Quota, Reason
from slidegate.ops.dashboard.texts import count, ms, rate
from slidegate.ops.replay import logs as logs_module
from slidegate.ops.replay.logs import NO_TIME, AccessLogs, AccessRecord, line_parser, parse_line
from slidegate.ops.replay.replay import Replay, ReplayedRequest, nothing, scope_of
from slidegate.ops.replay.report import MINUTE_US, QUANTILES, Simulation, measure, peak, quantile, refused_by
from slidegate.ops.rows import share, span
from slidegate.testing import FakeClock

from ...asgi import hello, send_scope
from ...redis_servers import BOUND_S, free_port, until

SAMPLES = Path(__file__).resolve().parent / "samples"
TIME = "12/May/2024:12:00:00 +0000"
COMMON = f'192.0.2.7 - - [{TIME}] "GET /a?b=1 HTTP/1.1" 200 5120'
RECORD = AccessRecord(1_715_515_200_000_000, "192.0.2.7", "GET", "/a?b=1", 200)


FIELDS = r"(?P<time>\S+) (?P<client>\S+) (?P<method>\S+) (?P<path>\S+) (?P<status>\d+)"
HEADER = r'(?P<client>.+?) \[(?P<time>.+?)\] "(?P<request>.*?)" "(?P<header_x_api_key>.*?)"'
PARSERS = {"fields": line_parser(FIELDS), "header": line_parser(HEADER)}


def requests(name: str) -> list[AccessRecord]:
    """Return the requests of a sample, without header fields, which the formats log to different extents."""
    logs = AccessLogs([str(SAMPLES / name)])
    found = [record._replace(path=record.path if record.method else "-", headers=()) for record in logs]
    assert not logs.unreadable
    return found


def read(directory: Path, content: bytes) -> tuple[AccessLogs, list[AccessRecord]]:
    file = directory / "some.log"
    file.write_bytes(content)
    logs = AccessLogs([str(file)])
    return logs, list(logs)


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir()))
def test_every_format_contains_the_same_requests(name: str) -> None:
    expected = requests("combined.log")
    found = requests(name)
    if name == "uvicorn.log":  # a server logs HTTP requests alone
        expected = [record for record in expected if record.method]
    if name == "nginx.jsonl":  # it has no query
        expected = [record._replace(path=record.path.partition("?")[0]) for record in expected]
    assert found == expected
    assert len(found) >= 11
    if name != "uvicorn.log":  # it has no header fields
        fields = list(AccessLogs([str(SAMPLES / name)]))[1].headers
        assert dict(fields)["user-agent"] == "ExampleBot/2.1 (+https://bot.example.com/)"
        assert ("x-api-key", "key-of-nobody") in fields or name == "combined.log"


# -- whatever stands around the address --------------------------------------------------------------------------------

V4 = st.builds("{}.{}".format, st.sampled_from(["192.0.2", "198.51.100", "203.0.113"]), st.integers(0, 255))
GROUP = st.integers(0, 0xFFFF).map("{:x}".format)
V6 = st.builds("2001:db8:{}::{}".format, GROUP, GROUP)
PORT = st.integers(1, 65_535)
ADDRESSES = st.one_of(
    V4.map(lambda v4: (v4, v4)),
    V6.map(lambda v6: (v6, v6)),
    st.builds(lambda v4, port: (f"{v4}:{port}", v4), V4, PORT),
    st.builds(lambda v6, port: (f"[{v6}]:{port}", v6), V6, PORT),
    V6.map(lambda v6: (f"[{v6}]", v6)),
    st.builds(lambda one, two: (f"{one}, {two}", two), V4, V4 | V6),
    st.builds(lambda one, two: (f"unknown,{one},{two}", two), V4, V4),
    V4.map(lambda v4: (f'"{v4}"', v4)),
)
"""An address as a server writes it, and the client that it means."""
HOSTS = st.sampled_from(["web1", "db.example.org", "ip-10-0-0-1"])
DAY = "May 12 12:00:00"
PREFIXES = st.one_of(
    st.just(""),
    st.sampled_from(["stdout F ", "stderr P "]).map("2024-05-12T12:00:01.123456789Z {}".format),
    st.sampled_from(["web-1  | ", "web-1  \t| ", "proxy.1.x7a@node2    | "]),
    st.builds(f"<{{}}>{DAY} {{}} nginx: ".format, st.integers(0, 191), HOSTS),
    st.builds(f"{DAY} {{}} gunicorn[{{}}]: ".format, HOSTS, PORT),
    st.builds("2024-05-12T12:00:00.123456+00:00 {} nginx[{}]: ".format, HOSTS, PORT),
    st.builds("<190>1 2024-05-12T12:00:00Z {} {} {} {} - ".format, HOSTS, *[st.sampled_from(["-", "nginx"])] * 3),
    st.builds("{}:{} ".format, HOSTS, PORT),
    st.builds(f"{DAY} {{}} nginx: www.example.org:{{}} ".format, HOSTS, PORT),
)
NAME_TEXT = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"], exclude_characters='"'), min_size=1)
USERS = st.one_of(
    st.sampled_from(["-", "jane", "jane doe", "203.0.113.99", "- 203.0.113.99 - -", 'j \\" [x] \\"']),
    NAME_TEXT.filter(lambda name: name.strip() and "\\" not in name),
)
"""User names are chosen by clients, as are those that look like another client."""
IDENT_AND_USER = USERS.map("- {}".format) | st.sampled_from(["ident user", "ident -", "203.0.113.98 -", "-", ""])
AGENTS = st.sampled_from(["curl/8", "-", '\\"] \\"GET / HTTP/1.1\\" 200', "{}", "[12/May/2020:12:00:00 +0000]"])


@given(prefix=PREFIXES, address=ADDRESSES, user=IDENT_AND_USER, agent=AGENTS)
def test_a_client_is_the_same_whatever_stands_around_its_address(
    prefix: str, address: tuple[str, str], user: str, agent: str
) -> None:
    written, client = address
    behind = f'[{TIME}] "GET /a?b=1 HTTP/1.1" 200 5120 "-" "{agent}"'
    line = f"{prefix}{written} {user} {behind}" if user else f"{prefix}{written} {behind}"
    found = parse_line(line)
    assert isinstance(found, AccessRecord), found
    assert found._replace(headers=()) == RECORD._replace(client=client)


# -- odd lines ---------------------------------------------------------------------------------------------------------

TRAEFIK = {
    **{"ClientHost": "192.0.2.7", "RequestMethod": "GET", "RequestPath": "/a?b=1", "DownstreamStatus": 200},
    **{"StartUTC": "2024-05-12T12:00:00.250000999Z"},
}
NGINX = {
    **{"time_iso8601": "2024-05-12T14:00:00.25+02:00", "remote_addr": "192.0.2.7", "request_method": "GET"},
    **{"uri": "/a", "status": "200"},
}


def shown(line: str) -> str:
    """Return what a line becomes, as text, by the regular expression of its first word if it is one."""
    parser, _, rest = line.partition(" ")
    found = PARSERS[parser](rest) if parser in PARSERS else parse_line(line)
    if isinstance(found, str):
        return found
    when = datetime.fromtimestamp(found.time_us / 1_000_000, UTC)
    target = f"{found.method or 'no HTTP request'} {found.path}"
    return f"{when:%Y-%m-%d %H:%M:%S.%f} {found.client} {target} {found.status} {dict(found.headers) or ''}".rstrip()


def test_lines_become_records_or_say_why_not(texts: Callable[..., None]) -> None:
    texts(SAMPLES.with_name("lines.txt"), "> ", shown)


@given(st.text(max_size=300))
def test_no_text_raises(text: str) -> None:
    assert isinstance(parse_line(text), (AccessRecord, str))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON_VALUES = st.recursive(
    PLAIN | st.sampled_from(["192.0.2.7", "GET", "/", "200"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.sampled_from([TRAEFIK, NGINX]), st.data())
def test_no_json_value_in_any_field_raises(line: dict[str, Any], data: st.DataObject) -> None:
    names = st.sampled_from([*line, "request", "request_uri", "msec", "StartUTC", "http_", "request_"])
    odd = data.draw(st.dictionaries(names, JSON_VALUES, min_size=1))
    found = parse_line(json.dumps({**line, **odd}))
    if isinstance(found, AccessRecord):
        assert 0 <= found.time_us < 253_402_300_800_000_000
        assert found.client
        assert 0 <= found.status <= 999


# -- files -------------------------------------------------------------------------------------------------------------

S_US = 1_000_000
START_US = 1_772_532_000 * S_US


def line(second: float, client: str = "203.0.113.7", path: str = "/") -> str:
    """Write a line `second` seconds after ten o'clock; up to thirteen hours."""
    hours, rest = divmod(10 * 3_600 + int(second), 3_600)
    time = f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f'{client} - - [03/Mar/2026:{time} +0000] "GET {path} HTTP/1.1" 200 1 "-" "curl/8"\n'


@given(seconds=st.lists(st.integers(0, 50), max_size=80), buffered=st.integers(1, 30), files=st.integers(1, 3))
def test_records_within_the_buffer_are_sorted_and_none_is_lost(
    seconds: list[int], buffered: int, files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("order")
    for part in range(files):
        (directory / f"{part}.log").write_text("".join(map(line, seconds[part::files])))
    logs = AccessLogs(sorted(map(str, directory.iterdir())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs_module, "BUFFERED", buffered * files)
        found = [(record.time_us - START_US) // S_US for record in logs]
    assert sorted(found) == sorted(seconds)
    late = sum(map(int.__gt__, itertools.accumulate(found, max), found))
    assert logs.late == late
    orders = [sorted(range(len(part)), key=part.__getitem__) for part in (seconds[at::files] for at in range(files))]
    if all(abs(position - before) <= buffered // 2 for order in orders for position, before in enumerate(order)):
        assert found == sorted(seconds)


ODD_LINES = [line(0).encode(), b"\xef\xbb\xbf" + line(1).encode(), line(2).encode()[:40], b'{"a":', b"a" * 70_000]
ODD_LINES += [b"\0" * 9, b"\r", b"\n", b" ", b"\xff\xfe"]
SOME_LINES = st.lists(st.binary(max_size=60) | st.sampled_from(ODD_LINES), max_size=12)


@given(lines=SOME_LINES, joint=st.sampled_from([b"\n", b"\r\n", b""]))
def test_every_line_is_counted_once(lines: list[bytes], joint: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = joint.join(lines)
    if content.startswith(b"\x1f\x8b"):
        return
    logs, found = read(tmp_path_factory.mktemp("some"), content)
    assert logs.lines == sum(bool(one.decode("utf-8-sig", "replace").strip()) for one in content.split(b"\n"))
    assert logs.lines == len(found) + logs.unreadable
    assert bool(logs.example) == bool(logs.unreadable)
    assert logs.example.isprintable()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :],
    "with a tail": lambda data: data + b"tail" * 9,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_gzip_is_read_up_to_the_damage(damage: str, tmp_path: Path) -> None:
    text = "".join(line(second, path=f"/{second**3}") for second in range(10_000)).encode()
    data = b"".join(gzip.compress(text[start : start + 100_000]) for start in range(0, len(text), 100_000))
    logs, found = read(tmp_path, DAMAGES[damage](data))
    assert len(found) == logs.lines - logs.unreadable > 1_000
    assert logs.unreadable
    if damage != "flipped":  # else there are other odd lines before it
        assert "the compressed data is damaged" in logs.example


def test_a_gzip_bomb_of_one_line_takes_little_memory(tmp_path: Path) -> None:
    member = gzip.compress(b"a" * 4_194_304)  # a gzip file may have several
    tracemalloc.start()
    try:
        logs, found = read(tmp_path, member * 16 + gzip.compress(f"\n{line(0)}".encode()))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(found), logs.unreadable) == (1, 1)
    assert peak_bytes < 20_000_000


# -- the access logs that uvicorn and hypercorn really write --------------------------------------------------


APP = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})
"""
FORMAT = '%(asctime)s %(client_addr)s - "%(request_line)s" %(status_code)s'
"""The format that the error about a log of uvicorn without times shows."""
LOG_CONFIG = {
    "version": 1,
    "formatters": {"access": {"()": "uvicorn.logging.AccessFormatter", "fmt": FORMAT}},
    "handlers": {"access": {"class": "logging.StreamHandler", "formatter": "access"}},
    "loggers": {"uvicorn.access": {"handlers": ["access"], "level": "INFO"}},
}
COMMANDS = {
    "uvicorn": ["uvicorn", "--port", "PORT"],
    "uvicorn with times": ["uvicorn", "--port", "PORT", "--log-config", "log.json"],
    "hypercorn": ["hypercorn", "--bind", "127.0.0.1:PORT", "--access-logfile", "-"],
}


@pytest.mark.all
@pytest.mark.parametrize("server", COMMANDS)
def test_the_access_log_of_a_server_is_read_or_lacks_its_time(server: str, tmp_path: Path) -> None:
    before_us = (int(time.time()) - 1) * 1_000_000
    (tmp_path / "served_app.py").write_text(APP)
    (tmp_path / "log.json").write_text(json.dumps(LOG_CONFIG))
    port, out = free_port(), tmp_path / "out"
    module, *arguments = (word.replace("PORT", str(port)) for word in COMMANDS[server])
    command = [sys.executable, "-m", module, "served_app:app", *arguments]

    def is_logged() -> bool:
        with suppress(httpx.TransportError):  # it does not listen yet
            httpx.get(f"http://127.0.0.1:{port}/seen", headers={"user-agent": 'odd "agent"'}, timeout=BOUND_S)
        return "/seen" in out.read_text()

    with out.open("w") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file) as process:
        try:
            until(is_logged, "the server logs a request")
        finally:
            process.terminate()
    found = [parse_line(text) for text in out.read_text().splitlines() if "/seen" in text]
    assert found
    for record in found:
        if server == "uvicorn":
            assert record == NO_TIME
            continue
        assert isinstance(record, AccessRecord), record
        assert (record.client, record.method, record.path, record.status) == ("127.0.0.1", "GET", "/seen", 404)
        if time.localtime().tm_gmtoff == 0 or server != "uvicorn with times":  # uvicorn logs local time without a zone
            assert before_us <= record.time_us <= (time.time() + 1) * 1_000_000


# -- a replay decides as the live middleware does at the same times; a report has the numbers of the log ---------------


CLIENTS = ("192.0.2.7", "192.0.2.8", "192.0.2.70", "198.51.100.3", "2001:db8::7", "2001:db8::8", "203.0.113.9")
PATHS = ("/", "/login", "/sub/2", "/free", "/items/7", "/items/8?a=b", "/.env", "/health", "/blocked", "/odd%20path")
RULES = [
    Rule("/health", exempt=True),
    Rule("/blocked", block=True),
    Rule("/login", "2/minute", methods=["POST"], count_if=lambda status: status == 401, name="login"),
    Rule("/items/{id}", "3/10s; 8/minute", name="items"),
    Rule("/items/{id}", "2/10s", shadow=True, name="stricter"),
    Rule("/items/{id}", concurrency=2, methods=["PUT"], final=True, name="uploads"),  # one for each middleware
    Rule("*", "20/minute", key=header("X-API-Key"), name="keys"),
    Rule("*", ["6/10s", Quota("30/day")], when=lambda one: "user-agent" in one.headers, count_denied=True, name="bots"),
    Rule("*", lambda request: f"{len(request.url.path)}/hour", name="by path"),
    Rule("*", "7/hour"),
]
DEFAULTS = ("3/hour", lambda request: "2/hour" if "x-api-key" in request.headers else "1/minute")
RECORDS = st.lists(
    st.builds(
        AccessRecord,
        st.sampled_from([0, 1, 400_000, 1_000_000, 9_999_999, 61_000_000]),
        st.sampled_from(CLIENTS),
        st.sampled_from(["GET", "POST", "PUT"]),
        st.sampled_from(PATHS),
        st.sampled_from([200, 304, 401, 404, 500]),
        st.sampled_from([(), (("x-api-key", "k1"),), (("user-agent", "curl/8"), ("x-api-key", "k2"))]),
    ),
    min_size=1,
    max_size=120,
)
OPTIONS = st.fixed_dictionaries(
    {"rules": st.lists(st.sampled_from(RULES), unique=True)},
    optional={
        "default_limits": st.sampled_from(DEFAULTS),
        "key": st.just(header("X-API-Key")),
        "client": st.just(client_ip(trusted=["203.0.113.9"])),
        "blocklist": st.just(Networks(["198.51.100.3"])),
        "allowlist": st.just(Networks(["192.0.2.64/26"])),
        "bans": st.just(BanPolicy("6/10m", "5m", signals={404: 1, "refused": 1, "/.env": "ban"})),
    },
)
LAYERS = st.lists(st.tuples(st.sampled_from([None, "inner", "outer"]), OPTIONS), min_size=1, max_size=2)
"""Middlewares around each other, with their names; their rules may have the same ones."""


async def play(replay: Replay, *records: AccessRecord) -> list[ReplayedRequest]:
    return [await replay.play(record) for record in records]


def is_admitted(result: ReplayedRequest) -> bool:
    """Return whether a request passed: an exempt one has no outcome."""
    return result.outcome is None or result.outcome.allowed


async def admits(replay: Replay | RateLimitMiddleware, *records: AccessRecord) -> list[bool]:
    """Return which records a replay admits, or that of one middleware."""
    replay = replay if isinstance(replay, Replay) else Replay([replay])
    return [is_admitted(result) for result in await play(replay, *records)]


def record(second: float, client: str = "192.0.2.7", path: str = "/", **more: Any) -> AccessRecord:
    at_us = START_US + round(second * 1_000_000)
    return AccessRecord(at_us, client, "GET", path, 200)._replace(**more)


def test_numbers_lines_and_records_are_as_the_text_says(texts: Callable[..., None], tmp_path: Path) -> None:
    shown = {function.__name__: function for function in (count, hello, ms, rate, share, span)}
    names = {**globals(), **shown, "DIR": tmp_path, "run": asyncio.run}

    def answer(line: str) -> str:
        kept = re.match(r"(\w+) = ", line)
        value = eval(line[kept.end() if kept else 0 :], names)
        names.update({kept[1]: value} if kept else {})
        return "" if kept else repr(value)

    texts(SAMPLES.with_name("values.txt"), ">>> ", answer)


EACH_TWICE = [AccessRecord(0, CLIENTS[0], "GET", path, 200) for path in PATHS * 2]


@example(EACH_TWICE, [(None, {"rules": [], "default_limits": "1/minute"})], False)
@given(RECORDS, LAYERS, st.booleans())
async def test_a_replay_decides_as_the_live_application_does_and_a_simulation_counts_its_requests(
    gaps: list[AccessRecord], layers: list[tuple[str | None, dict[str, Any]]], is_shared: bool
) -> None:
    async def answer(request: Request, not_found: object = None) -> Response:
        return Response(status_code=int(request.headers["x-status"]))

    clock, methods = FakeClock(START_US), ["GET", "POST", "PUT"]
    routes = [
        Mount("/sub", routes=[Route("/{step}", answer, methods=methods)]),
        Route("/items/{id}", answer, methods=methods),
        Route("/free", RateLimit.exempt(answer), methods=methods),
        Route("/", answer, methods=methods),
    ]
    app = Starlette(routes=routes, exception_handlers={404: answer})
    shared, middlewares = Limiter(MemoryStore(clock=clock)), list[Any]()
    for number, (name, options) in enumerate(layers):
        inner = middlewares[0] if middlewares else app
        name = f"{name or ''}{number}"  # on one limiter, limits without a name must not be one
        limiter = shared if is_shared else Limiter(MemoryStore(clock=clock))
        middlewares.insert(0, RateLimitMiddleware(inner, limiter=limiter, name=name, **options))
    replay, simulated, results = Replay(middlewares), Simulation(Replay(middlewares)), list[ReplayedRequest]()
    for gap in gaps:
        record = gap._replace(time_us=clock() + gap.time_us)
        clock.set(record.time_us)
        scope = scope_of(record)
        scope["headers"].append((b"x-status", str(record.status).encode()))
        results.append(await replay.play(record))
        status, outcome = (await send_scope(middlewares[0], scope)).status, results[-1].outcome
        assert status == (record.status if outcome is None else outcome.status)
        await simulated.add(record)
    check_counts(simulated.value(), results)


def check_counts(value: dict[str, Any], results: list[ReplayedRequest]) -> None:
    """Check that the numbers of a simulation are those of its requests."""
    refused = Counter(result.client for result in results if not is_admitted(result))
    assert value["requests"] == len(results)
    assert value["passed"] == sum(map(is_admitted, results))
    assert (value["refused"], value["refused_clients"]) == (refused.total(), len(refused))
    assert {row["client"]: row["refused"] for row in value["most_refused"]} == refused
    rows = {(row["kind"], row["rule"]): row for row in value["rules"]}
    kinds = Counter(event.kind for result in results for event in result.events)
    assert sum(row["refused"] for (kind, _), row in rows.items() if kind == "shadow") == kinds["shadow_refused"]
    for (kind, _), row in rows.items():
        assert (row["requests"] is not None) == (kind == "limit")
    outcomes = [result.outcome for result in results if result.outcome is not None]
    counted = Counter[str]()
    for outcome in outcomes:  # a client that is banned or blocked meets no rule that counts
        counting = [one for one in outcome.decisions if one.reason not in (Reason.BANNED, Reason.BLOCKED)]
        counted.update({bucket.label for one in counting for bucket, _, _ in one.checks})
    for name, row in [(name, row) for (kind, name), row in rows.items() if kind == "limit"]:
        assert row["requests"] == counted[name]
        assert row["refused"] == sum(not outcome.allowed and name in outcome.rules for outcome in outcomes)
        assert row["refused_clients"] <= row["refused"]


# -- busiest moments are those of the log, and refusals those of the real limiter --------------------------------------


GAPS = st.lists(
    st.sampled_from([0, 1, 900, 15_625, 15_626, 100_000, 499_999, 1_000_000, 30_000_000]), min_size=1, max_size=150
)


def named(times_us: Iterable[Sequence[int]]) -> dict[str, Sequence[int]]:
    """Return the times of the requests of clients with names."""
    return {f"client-{number}": times for number, times in enumerate(times_us)}


@example([[0, 60_000_000, *[0] * 99]], 100)  # beyond 64, a window may count what is a little older
@given(st.lists(GAPS, min_size=1, max_size=3), st.integers(1, 120))
async def test_a_limit_refuses_exactly_what_the_real_limiter_refuses(gaps: list[list[int]], amount: int) -> None:
    clients = [[10**15 + moment for moment in accumulate(one)] for one in gaps]
    found = refused_by(amount, clients)
    records = sorted(
        AccessRecord(time_us, f"192.0.2.{number}", "GET", "/", 200)
        for number, times in enumerate(clients)
        for time_us in times
    )
    replay = Replay([RateLimitMiddleware(nothing, limits=f"{amount}/1m")])
    refused = Counter(result.client for result in await play(replay, *records) if not is_admitted(result))
    assert found == {"limit": f"{amount}/1m", "clients": len(refused), "requests": refused.total()}


@given(st.lists(st.integers(1, 50), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_smallest_value_that_covers_a_share(values: list[int], share: float) -> None:
    values.sort()
    found = quantile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-5
    smaller = [value for value in values if value < found]
    assert len(smaller) < share * len(values) + 1e-5


@example([[1, 30_000_000, 30_000_000]])  # the last is a minute after the first, which no longer counts
@given(st.lists(GAPS, min_size=1, max_size=5))
def test_peaks_are_the_most_requests_in_any_minute(gaps: list[list[int]]) -> None:
    clients = [list(accumulate(one)) for one in gaps]
    found = measure(named(clients))
    peaks = [max(sum(end - MINUTE_US < time <= end for time in times) for end in times) for times in clients]
    assert [peak(times) for times in clients] == peaks
    assert found["most"] == max(peaks)
    assert found["would_refuse"]


@given(st.lists(st.integers(1, 20), min_size=20, max_size=60), st.integers(1, 200), st.integers(1, 200))
def test_the_busiest_client_alone_moves_no_number_but_the_most(honest: list[int], once: int, more: int) -> None:
    """What it sends decides how many of it are refused, and not which limits are tried, or how the others look."""
    found = []
    for peak_of_it in (20 + once, 20 + once + more):
        measured = measure(named([0] * count for count in (*honest, peak_of_it)))
        assert measured.pop("most") == peak_of_it
        decided = {name for name, share in QUANTILES.items() if share * (len(honest) + 1) > len(honest)}
        numbers = {name: value for name, value in measured.items() if name not in {*decided, "requests"}}
        numbers["would_refuse"] = [row["limit"] for row in measured["would_refuse"]]
        found.append(numbers)
    shorter, longer = found
    assert longer["would_refuse"][: len(shorter["would_refuse"])] == shorter["would_refuse"]
    assert {**longer, "would_refuse": None} == {**shorter, "would_refuse": None}
