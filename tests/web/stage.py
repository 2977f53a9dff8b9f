"""A site whose making, visitors and operators are lines of text, and what becomes of it.

tests/README.md has all words, in scenarios that are played.
"""

import ast
import asyncio
import logging
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import anyio
import fastapi
import pytest
from fastapi import Depends, FastAPI
from fastapi.exception_handlers import http_exception_handler
from starlette import authentication
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

import slidegate
from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, client_key
from slidegate.core import StoreUnavailable
from slidegate.core.durations import read_span_us
from slidegate.events import Outcome
from slidegate.testing import FakeClock, limits_clock

from ..asgi import PEER, Answer, hello, scope_of, send_scope
from ..remote_stores import SlowStore
from ..virtual_time import VirtualTime, turns
from . import middlewares
from .middlewares import FORMS, METHODS, FollowedFiles, Listener, Log, check_fields, class_of, fails, item, mmdb, page

PREFLIGHT = {"Origin": "https://example.org", "Access-Control-Request-Method": "GET"}


def twice(app: ASGIApp) -> ASGIApp:
    """Return an application that uses each scope twice, or a copy, as a retry does; the first ends as X-First says."""

    async def using(scope: Scope, receive: Receive, send: Send) -> None:
        again = {**scope} if "x-copy" in Request(scope).headers else scope
        scope["first"] = Request(scope).headers["x-first"]
        first = asyncio.create_task(send_scope(app, scope))
        await turns()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        again["path"] = Request(scope).headers.get("x-then", scope["path"])
        await app(again, receive, send)

    return using


def impatient(app: ASGIApp) -> ASGIApp:
    """Return an application that goes on with /spent where it has no answer of /waits at once."""

    async def asking(scope: Scope, receive: Receive, send: Send) -> None:
        for scope["path"] in ("/waits", "/spent"):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await app(scope, receive, send)
                    break

    return asking


async def current_user(connection: HTTPConnection) -> None:
    connection.state.user = connection.headers.get("x-user", "")


async def softened() -> AsyncIterator[None]:
    try:
        yield
    except slidegate.RateLimitExceeded:
        raise fastapi.HTTPException(503) from None


OTHERS: list[Any] = [current_user, impatient, softened, twice, page, UUID, SimpleNamespace, HTTPException, Middleware]
OTHERS += [Mount, Path, Route, class_of, fastapi, hello, http_exception_handler, mmdb]
NAMES = {**{name: getattr(slidegate, name) for name in slidegate.__all__}, "PEER": PEER, "other": True, "store": True}
NAMES |= {one.__name__: one for one in OTHERS}
FILES = {"asn": middlewares.operators, "country": middlewares.countries}
"""Files that are made where a line names them: they take longer than most scenarios."""
NAMES |= {"Text": PlainTextResponse, "fails": fails, "fails_later": middlewares.written(fails, "later")}
NAMES |= {
    "never": lambda *given: asyncio.Event().wait(),
    "in_a_second": lambda *given: asyncio.sleep(1, "late"),
    "now": lambda value: value,
    "later": lambda value: asyncio.sleep(0, value),
    "authentication": authentication,
    "others": [
        Middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request)),
        # It gets a copy of each scope, as below middlewares of monitoring.
        Middleware(lambda app: lambda scope, receive, send: app({**scope}, receive, send)),
    ],
}
FIRST_USES: dict[str, Any] = {
    "raises": NAMES["fails_later"],
    "hangs": NAMES["never"],
    "200": PlainTextResponse("page"),
    "503": PlainTextResponse("try again", 503),
    "silent": lambda *given: asyncio.sleep(0),
}
METHODS_SENT = {*METHODS, "DELETE", "OPTIONS", "VERSION-CONTROL", "FOO", "get", "post", "SOCKET", "DENIAL", "PREFLIGHT"}


def value_of(written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except ValueError:  # it is a text, such as "ban"
        return written


def repeated(written: str) -> str:
    """Return a text with what it repeats."""
    return re.sub(r"\{(.+?)\*(\d+)\}", lambda found: found[1] * int(found[2]), written)


def expanded(written: str) -> str:
    """Return a text with its escapes read, and with what it repeats."""
    return repeated(written).encode().decode("unicode_escape")


def end_of(outcome: Outcome) -> str:
    """Return in a word how a request has ended."""
    if outcome.refusal is not None:
        return "refused"
    return "exception" if outcome.failed else "success"


class Stage:
    """Carries out the lines of a scenario."""

    def __init__(self, virtual: VirtualTime, directory: Path, position: str = "") -> None:
        self.position, self.virtual = position, virtual
        self.clock = FakeClock(1_800_000_000_000_000)
        self.observer, self.log = Listener(without=["store_late"]), Log()
        self.names = {**NAMES, "asked": [], "observer": self.observer, "outage_begins": self.outage_begins}
        self.remote, self.sockets = SlowStore(self.clock), dict[str, middlewares.SocketClient]()
        self.limiter = self._limiter()
        self.options: dict[str, Any] = {}
        self.rules: list[Rule] = []
        self.around: list[Callable[[ASGIApp], Any]] = []
        self.inside: FastAPI | None = None
        self.functions: dict[str, Any] = {"page": page, "item": item}
        self.files, self.environment = FollowedFiles(directory), pytest.MonkeyPatch()
        self.environment.chdir(directory)
        own_time = SimpleNamespace(monotonic=lambda: self.clock() / 1_000_000)  # an event loop keeps that of the system
        self.environment.setattr("slidegate.web.callbacks.time", own_time)
        self.files.clock = self.clock
        self._app: Any = None
        virtual.clock, self.began_s = self.clock, virtual.passed_s
        self.tasks: list[asyncio.Task[Any]] = []
        self.lifespan: asyncio.Task[Any] | None = None
        self.gone: list[anyio.Event] = []
        self.ended: list[tuple[float, int, str]] = []
        self.is_slow = False
        self.under_way: list[tuple[str, asyncio.Event]] = []

    async def __aenter__(self) -> "Stage":
        logging.getLogger("slidegate").addHandler(self.log)
        self._clocks = limits_clock(self.clock)
        self._clocks.__enter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._clocks.__exit__(None, None, None)
        logging.getLogger("slidegate").removeHandler(self.log)
        self.environment.undo()
        begun = [*self.tasks, *filter(None, [self.lifespan])]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def play(self, *lines: str) -> list[str]:
        """Return the answer to each of some lines."""
        return [await self.answer(line) for line in lines]

    def _limiter(self, remote: bool = False, **options: Any) -> Limiter:
        store = self.remote if remote else MemoryStore(clock=self.clock, wall_clock=self.clock)
        return Limiter(store, **{"observers": [self.observer], "deadline": "60s", **options})

    # -- how the site is made ------------------------------------------------------------------------------------------

    def _site(self, remote: bool = False, inline: bool = False, **options: Any) -> None:
        self.remote.inline = inline
        of_limiter = options.keys() & {"networks", "observers", "on_error", "secret"}
        self.limiter = self._limiter(remote, **{name: options.pop(name) for name in of_limiter})
        self.options = options

    def _everywhere(self, limits: Any, exception_handlers: Any = None, middleware: Any = None, **options: Any) -> None:
        if self.position == "rule":
            self.inside = middlewares.starlette(page)
            self.rules.append(Rule("*", limits, **options))
        else:
            about_app = {"exception_handlers": exception_handlers, "middleware": middleware}
            self.inside = FORMS[self.position](RateLimit(limits=limits, **options), page, **about_app)

    _forms = _everywhere

    def _rule(self, *given: Any, **options: Any) -> None:
        self.rules.append(Rule(*given, **options))

    def _around(self, other: Any = False, **options: Any) -> None:
        limiter = self._limiter() if other else self.limiter
        self.around.append(other if callable(other) else partial(RateLimitMiddleware, limiter=limiter, **options))

    def _application(self, *limits: RateLimit, root_path: str = "", **options: Any) -> None:
        self.inside = middlewares.with_root(root_path, dependencies=[*map(Depends, limits)], **options)

    def serve(self, app: Any) -> None:
        """Take an application in place of one that is made by lines."""
        self._app = app

    def _slow(self) -> None:
        """Let answers wait until they are ended."""
        self.is_slow = True

    async def _anything(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on every path, and accept or deny every websocket."""
        status = HTTPConnection(scope).headers.get("x-status", "talks")
        if first := scope.pop("first", ""):
            await FIRST_USES[first](scope, receive, send)
        elif scope["type"] == "http":
            await (await self._answer(Request(scope)))(scope, receive, send)
        elif status == "talks":
            await middlewares.listening(scope, receive, send)
        elif status == "200":
            await send({"type": "websocket.accept"})
        elif scope["extensions"]:
            await Response(status_code=int(status))(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, request: Request) -> Response:
        self.scopes = request.scope, {**request.scope}
        if self.is_slow and request.scope.get("comes"):
            own = request.headers.get("x-tenant", "nobody"), asyncio.Event()
            self.under_way.append(own)
            try:
                await own[1].wait()
            except asyncio.CancelledError:
                self.under_way.remove(own)
                raise
        if "x-takes" in request.headers:
            await self.answer(request.headers["x-takes"])
        made = middlewares.answer(request)
        if "x-late" in request.headers:
            made.background = BackgroundTask(fails)
        if "x-limited" in request.headers:
            async with self.limiter.limited(request.headers["x-limited"], key="smtp"):
                pass
        for field, spend in (("x-charge", slidegate.charge), ("x-settle", slidegate.settle)):
            if field in request.headers:
                units, _, rule = re.fullmatch(r"([^{,]+|{.+})(,(.+))?", request.headers[field]).groups()
                made.headers[f"{field}d"] = str(bool(await spend(request, value_of(units), rule=rule)))
        if "x-strike" in request.headers:
            weight, _, policy = request.headers["x-strike"].partition(",")
            ban = await slidegate.strike(request, value_of(weight), "wrong\npassword", policy=policy or None)
            made.headers["x-struck"] = f"{ban.by}, {ban.reason}" if ban else "no"
        return made

    def another_endpoint(self) -> Any:
        """Return another function of the same name at each call."""

        async def endpoint(request: Request) -> Any:
            return await self._answer(request)

        return endpoint

    def _endpoint(self, path: str, *limits: Any, function: str = "", depends: Sequence[Any] = ()) -> None:
        name = function or path
        endpoint = self.functions.setdefault(name, partial(page) if "partial" in name else self.another_endpoint())
        for decorate in reversed(limits):
            endpoint = decorate(endpoint)
        self.inside = self.inside or FastAPI()
        self.inside.api_route(path, methods=[*METHODS], dependencies=[*map(Depends, depends)])(endpoint)

    def _write(self, name: str, *lines: str) -> None:
        self.files.write(name, "".join(f"{line}\n" for line in lines))

    def _file(self, name: str, own: Any = False, **options: Any) -> None:
        options |= {} if own else {"limiter": self.limiter}
        inside = self.inside or self._anything
        self._app = RateLimitMiddleware.from_file(inside, self.files.directory / name, **options)
        self.limiter = self._app.app.limiter
        if own:
            self._observe()

    def _env(self, written: str) -> None:
        self.environment.setenv(*written.split("=", 1))

    async def _look(self) -> None:
        await self.files.visit(self.app)

    def _socket(
        self, path: str, limit: Any = None, depends: Sequence[Any] = (), asks: Any = None, patient: bool = False
    ) -> None:
        self.inside = self.inside or FastAPI()
        if asks:
            self.inside.mount(path, partial(middlewares.asking, asks, patient))
        elif depends:
            self.inside.websocket(path, dependencies=[*map(Depends, depends)])(middlewares.greet)
        else:
            self.inside.router.routes.append(WebSocketRoute(path, (limit or (lambda one: one))(middlewares.greet)))

    @property
    def app(self) -> Any:
        if self._app is None:
            options = {**self.options, "limiter": self.limiter}
            if self.rules or options.keys().isdisjoint({"limits", "default_limits", "rules"}):
                options["rules"] = self.rules
            self._app = RateLimitMiddleware(self.inside or self._anything, **options)
            for around in self.around:
                self._app = around(self._app)
        return self._app

    async def _start(self) -> str:
        """Begin the lifespan, as a server does; return why it fails."""
        said: asyncio.Queue[Any] = asyncio.Queue()
        coming: asyncio.Queue[Any] = asyncio.Queue()
        coming.put_nowait({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self.lifespan = asyncio.create_task(self.app(scope, coming.get, said.put))
        failure: str = (await said.get()).get("message", "")
        return failure.rstrip().rpartition("\n")[2]

    # -- what comes ----------------------------------------------------------------------------------------------------

    async def answer(self, line: str) -> str:
        verb, _, rest = line.partition(" ")
        for name in FILES:
            if name in rest and name not in self.names:
                self.names[name] = FILES[name](self.files.directory)
        if verb[0] in "+-":
            passed = verb.removeprefix("+")
            self.clock.advance(us=int(passed[:-2])) if passed.endswith("us") else self.clock.advance(passed)
            return ""
        try:
            if verb in METHODS_SENT:
                return await self._requests(verb, *shlex.split(rest))
            words: list[Any] = shlex.split(rest) if verb == "write" else rest.split()
            options: dict[str, Any] = {}
            if verb in AS_IN_CODE:
                paths = words[:1] if verb in ("endpoint", "socket", "file") else []
                written = rest.removeprefix("".join(paths))
                given, options = eval(f"(lambda *given, **options: (given, options))({written})", self.names)
                words = [*paths, *given]
            if verb in OF_LIMITER:
                return "" if await getattr(self.limiter, verb)(*words) else "there is none"
            said = getattr(self, f"_{verb}")(*words, **options)
            return (said if said is None or isinstance(said, str) else await said) or ""
        except ConfigurationError as error:
            return f"ConfigurationError: {error}".replace(f"{self.files.directory}/", "")

    async def _requests(self, method: str, path: str, *words: str) -> str:
        show, scopes = self._scopes(method, path, *words)
        found = []
        for scope in scopes:
            try:
                last = await send_scope(self.app, scope, leaves_after=scope.pop("leaves_after"))
                found.append(self._status(last))
            except (RuntimeError, ClientDisconnect, LookupError, OSError, HTTPException) as error:
                found.append(type(error).__name__)
        return "\n".join([" ".join(self._counted(found)), *(self._shown(name, last, scope) for name in show)])

    def _scopes(self, method: str, path: str, *words: str) -> tuple[list[str], list[Scope]]:
        """Return which fields are shown, and the scopes of requests."""
        given = dict(word.split("=", 1) for word in words)
        path, _, query = expanded(path).partition("?")
        statuses = given.pop("answers", "200").split(",")
        times, written = int(given.pop("times", len(statuses))), expanded(given.pop("method", method))
        show = [name for name in given.pop("show", "").split(",") if name]
        clients = cycle(given.pop("client", PEER).split(","))
        more: dict[str, Any] = {name: given.pop(name) for name in ("root_path",) if name in given}
        more |= {"query_string": query.encode(), "leaves_after": int(given.pop("leaves", 9))}
        more |= eval(given.pop("with", "{}"), self.names)
        if "user" in given:
            more["state"] = {"user": given.pop("user")}
        for name in filter(str.islower, given):  # fields begin with a capital: a misspelt option would be one of them
            raise LookupError(f"no request has the option {name!r}")
        found: list[Scope] = []
        for _, status, client in zip(range(times), cycle(statuses), clients, strict=False):
            headers = {**given, **(PREFLIGHT if method == "PREFLIGHT" else {}), "X-Status": status}
            peer = None if client == "none" else (client, 1)
            sent = "OPTIONS" if method == "PREFLIGHT" else written
            if method in ("SOCKET", "DENIAL"):
                extensions = {"websocket.http.response": {}} if method == "DENIAL" else {}
                more |= {"type": "websocket", "extensions": extensions}
            scope = scope_of(path, sent, **{"client": peer, "headers": headers, **more})
            if written != method:  # a server may name the method of a handshake
                scope["method"] = written
            found.append({name: value for name, value in scope.items() if value is not ...})
        return show, found

    async def _open(self, name: str, *words: str) -> None:
        given = dict(word.split("=", 1) for word in words)
        how = {option: option in given for option in ("strict", "gone")}
        client = self.sockets[name] = middlewares.SocketClient(address=given.get("client", PEER), **how)
        self.tasks.append(asyncio.create_task(client.run(self.app)))
        await turns()

    async def _say(self, name: str, count: str = "1") -> str:
        for text in middlewares.texts(int(count)):
            self.sockets[name].coming.put_nowait(text)
        await turns(50)
        return self._received(name)

    async def _hear(self, name: str, kind: str = "send") -> str:
        content = {"text": "hi"} if kind == "send" else {"code": 1000}
        try:
            await self.sockets[name].scope["send"]({"type": f"websocket.{kind}", **content})
        except OSError as error:
            return f"OSError: {error}"
        return self._received(name)

    def _received(self, name: str) -> str:
        client = self.sockets[name]
        texts = [message for message in client.received if message["type"] == "websocket.receive"]
        ends = [f", then a disconnect with {end['code']}: {end['reason']}" for end in client.received[len(texts) :]]
        closes = [f", closed with {code}: {reason}" for code, reason in client.closes]
        return f"{len(texts)} received{''.join((*ends, *closes))}"

    async def _come(self, *words: str) -> None:
        """Begin requests, each when the one before is under way, waits or is answered."""
        _, scopes = self._scopes(*words)
        for scope in scopes:
            scope["comes"] = True
            self.gone.append(anyio.Event())
            self.tasks.append(asyncio.create_task(self._visit(len(self.tasks), scope)))
            await turns(50)

    async def _visit(self, number: int, scope: Scope) -> None:
        more_body = any(name == b"x-more" for name, _ in scope["headers"])
        how = {"more_body": more_body, "leaves": self.gone[number], "leaves_after": scope.pop("leaves_after")}
        try:
            status = self._status(await send_scope(self.app, scope, **how))
        except asyncio.CancelledError:
            status = "cancelled"
        self.ended.append((round(self.virtual.passed_s - self.began_s, 4), number, status))  # timers add microseconds

    async def _leave(self, *numbers: str) -> None:
        for number in numbers:
            self.gone[int(number)].set()
        await turns(50)

    async def _cancel(self, *numbers: str) -> None:
        for number in numbers:
            self.tasks[int(number)].cancel()
        await turns(50)

    async def _sleep(self, span: str) -> None:
        await asyncio.sleep(read_span_us(span, "sleep", "4s") / 1_000_000)

    async def _ended(self) -> str:
        """Return which requests have ended since the last look, by the time at which they did."""
        await turns(50)
        said = []
        for end, same in groupby(sorted(self.ended), lambda one: f"{one[2]} at {one[0]:g}s"):
            numbers = [number for _, number, _ in same]
            said.append(f"{' '.join(map(str, numbers))}: {end}")
        self.ended.clear()
        return "\n".join(said) or "none"

    async def _all(self) -> str:
        """Wait until all have ended."""
        await asyncio.gather(*self.tasks)
        return await self._ended()

    async def _end(self, *numbers: str) -> None:
        """End requests that are under way, by their places; without one, all, and those that follow."""
        self.is_slow = bool(numbers)
        for number in numbers or "0" * len(self.under_way):
            self.under_way.pop(int(number))[1].set()
            await turns(50)

    def _inside(self) -> str:
        return " ".join(tenant for tenant, _ in self.under_way) or "none"

    def _status(self, given: Answer) -> str:
        if not given.messages:
            return "nothing"
        kind = given.messages[0]["type"].removeprefix("websocket.")
        if kind in ("accept", "close"):
            return kind
        check_fields(given)
        return str(given.status)

    def _counted(self, statuses: list[str]) -> Iterator[str]:
        for status, same in groupby(statuses):
            count = len([*same])
            yield from [status] * count if count < 4 else [f"{status}*{count}"]

    def _shown(self, name: str, given: Answer, scope: Scope) -> str:
        if name == "charged":
            return f"charged: {', '.join(middlewares.charged(scope)) or 'none'}"
        if name == "keys":
            return f"keys: {', '.join(key for _, key, _ in middlewares.checks(scope))}"
        if name == "body":
            return given.body.decode()
        if name == "decision":
            return f"decision: {slidegate.decision_of(HTTPConnection(scope)).reason} of {client_key(Request(scope))}"
        if name == "code":
            return f"code: {given.messages[-1]['code']}"
        if name == "read":
            return f"read: {given.receives} messages of the request"
        return f"{name}: {given.headers.get(name, 'none')}"

    # -- what operators do and see -------------------------------------------------------------------------------------

    async def _override(self, name: str, limit: str, duration: str = "1h", by: str = "", *reason: str) -> None:
        assert self.app
        await self.limiter.override(name, limit, duration, by=by, reason=" ".join(reason))
        await turns(50)

    async def _ban(self, key: str, duration: str = "1h") -> None:
        await self.limiter.ban(key, duration, reason="by hand", by="ann")

    async def _settle(self, used: str, rule: str, copy: str = "") -> str:
        """Settle what the last request reserved, by its scope or a copy, as a task does that outlives its answer."""
        return str(await slidegate.settle(Request(self.scopes[bool(copy)]), int(used), rule=rule))

    async def _bans(self) -> str:
        return "\n".join([f"{ban.key} by {ban.by}, level {ban.level}" async for ban in self.limiter.bans()] or ["none"])

    def _amounts(self) -> str:
        found = [zip(bucket.names, bucket.limits, strict=True) for bucket in self.app.buckets()]
        return ", ".join(f"{name} {limit.amount}" for named in found for name, limit in named)

    async def _left(self, name: str, key: str = PEER) -> str:
        rule = next(one for one in self.app.rules if one.label == name)
        return str((await self.limiter.peek(key, rule.limits, 0, rule=name)).remaining)

    def _events(self, *kinds: str) -> str:
        said = [event for event in self.observer.events if not kinds or event.kind.startswith(kinds)]
        self.observer.events.clear()
        return "\n".join(
            " ".join(str(one) for one in (event.kind, event.details.get("rule"), event.details.get("key")) if one)
            for event in said
        )

    def _observe(self) -> None:
        self.limiter.observe(self.observer)

    def _outcomes(self, times: str = "") -> str:
        said = []
        for one in self.observer.outcomes:
            reason, rules = one.reason, ", ".join(one.rules) or "none"
            shadows = f", shadows {', '.join(one.shadow_rules)}" if one.shadow_rules else ""
            keys = ", ".join({state.key for decision in one.decisions for state in decision.states})
            when = f", at {one.began_us} for {one.duration_us} us, of {one.client}, under {keys}" if times else ""
            said.append(f"{reason} by {rules}, {one.route}, {one.status}, {end_of(one)}{shadows}{when}")
        self.observer.outcomes.clear()
        return "\n".join(said)

    def _refusals(self) -> str:
        """Return what observers get of each refused request."""
        refused = [event for event in self.observer.events if event.kind == "refused"]
        assert all(event.message.isprintable() and len(event.message) < 1_000 for event in refused)
        said = [event.details for event in refused]
        self.observer.events.clear()
        return "\n".join(" ".join(f"{name}={value}" for name, value in one.items() if value) for one in said)

    def _outage(self, said: str = "gone") -> None:
        self.remote.error = StoreUnavailable(said)

    def _breaks(self) -> None:
        self.remote.error = ConfigurationError("no such store")

    async def outage_begins(self) -> None:
        self._outage()

    def _stalls(self) -> None:
        self.remote.hangs = True

    async def _recovers(self) -> None:
        self.remote.error, self.remote.hangs = None, False
        self.remote.goes_on.set()
        await turns(50)

    def _permits(self, here: str = "") -> str:
        """Return how many are held: in the store, or `here` in its stand-in."""
        return str((self.limiter.engine.failover.local if here else self.limiter.store).permits_held())

    def _waiting(self) -> str:
        return str(self.limiter.engine.queues.waiting)

    def _keys(self) -> str:
        return str(self.limiter.store.key_count())

    def _findings(self) -> str:
        """Return the findings of each middleware; `outer` are those further out."""
        found, app = [], self.app
        for depth in range(len(self.around) + 1):
            found += [f"{'outer ' * (depth < len(self.around))}{finding}" for finding in app.findings]
            app = app.app
        return "\n".join(found) or "none"

    def _log(self) -> str:
        said = "\n".join(self.log.lines).replace(f"{self.files.directory}/", "")
        self.log.lines.clear()
        return said or "none"


OF_LIMITER = ("restore", "unban", "reset", "banned")
"""Verbs that are methods of the limiter, and say whether there was something."""
AS_IN_CODE = ("site", "everywhere", "forms", "rule", "around", "application", "endpoint", "socket", "file")
"""Verbs of which the rest is written as in code."""
