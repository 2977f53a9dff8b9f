"""An incident, drawn with a seed: rules and lists, one to three workers on one store, and what happens to them."""

import json
import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import slidegate
from slidegate import BanPolicy, Limiter, Networks, RateLimit, Rule, StoreError, client_ip, everyone, header, query
from slidegate.core import Quota
from slidegate.core.errors import StoreUnavailable
from slidegate.dashboard import Dashboard
from slidegate.events import Observer, Outcome
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ..asgi import Answer, call
from ..remote_stores import RemoteBans, SlowStore
from ..web.middlewares import FollowedFiles, end_of_looks
from .shared_rows import SharedRows
from .site import HOST, NOW_US, TOKEN, Page, basic

MINUTE_US = 60_000_000


async def answer(request: Any) -> PlainTextResponse:
    status = request.headers.get("x-answer", "200")
    if status == "fails":
        raise RuntimeError
    return PlainTextResponse("hi", int(status))


@RateLimit("4/minute", name="report")
async def report(request: Any) -> PlainTextResponse:
    return await answer(request)


def tenant(request: Any) -> str | None:
    return f"tenant:{name}" if (name := request.headers.get("x-tenant")) else None


def plan(request: Any) -> str:
    return "3/minute" if request.headers.get("x-api-key", "").endswith("0") else "30/minute"


RULES: dict[str, Callable[[], Rule]] = {
    "health": lambda: Rule("/health", exempt=True, name="health"),
    "vip": lambda: Rule("*", exempt=True, when=lambda request: "x-vip" in request.headers, name="vip"),
    "old": lambda: Rule("/old", block=True, status=410, name="old"),
    "closed": lambda: Rule("/closed", block=True, name="closed"),
    "login": lambda: Rule("/login", "4/minute; 9/hour", methods=["POST"], count_if=[401].__contains__, name="login"),
    "strict": lambda: Rule("/login", "50/minute", on_error="deny", name="strict"),
    "api": lambda: Rule("/api/{rest:path}", "6/minute", key=header("X-API-Key"), name="api"),
    "plans": lambda: Rule("/api/{rest:path}", plan, key=header("X-API-Key"), name="plans"),
    "tenants": lambda: Rule("/api/{rest:path}", "8/minute", key=tenant, name="tenants"),
    "month": lambda: Rule("/export", Quota("5/month", name="month"), name="exports"),
    "exporters": lambda: Rule("/export", "3/minute", final=True, name="exporters"),
    "service": lambda: Rule("/export", "40/minute", key=everyone, name="all exports"),
    "search": lambda: Rule("/search", "5/minute", key=query("token"), name="search"),
    "tried": lambda: Rule("*", "2/minute", shadow=True, name="tried"),
}
OPTIONS: dict[str, tuple[float, Callable[[], Any]]] = {
    "bans": (0.5, lambda: BanPolicy("8/10m", "1h", name="abuse")),
    "blocklist": (0.4, lambda: Networks(["198.51.100.0/28"])),
    "allowlist": (0.3, lambda: Networks(["203.0.113.240/28"])),
    "default_limits": (0.3, lambda: "5/minute"),
    "client": (0.2, lambda: client_ip(ipv4_prefix=28)),
    "enabled": (0.04, lambda: False),
}
FILE = '[[rules]]\npath = "/search"\nlimits = "{}/hour"\nkey = "everyone"\nname = "filed"\n'
PATHS = ["/", "/", "/", "/", "/login", "/api/a", "/api/b", "/export", "/search", "/old", "/closed", "/report"]
PATHS += ["/nowhere", "/health"]


class Decided(NamedTuple):
    """What was decided about one request.

    Attributes:
        is_refused: Whether something refused it; not for want of the store.
        by: What refused it: rules, a list, or ``ban by ann``; or the rules that counted it.
        keys: The other keys than its client's that counted or refused it, each with the rules that did.
        limits: The limits in force by then.
        ban: The key of the ban that refused it.
    """

    at_s: int
    client: str
    reason: str
    is_refused: bool
    by: tuple[str, ...]
    keys: dict[str, set[str]]
    limits: set[str]
    ban: str
    outcome: Outcome

    @classmethod
    def of(cls, outcome: Outcome) -> "Decided":
        refusal, checks = outcome.refusal, [check for one in outcome.decisions for check in one.checks]
        by, ban = outcome.rules, ""
        keys = [(key, bucket.label) for bucket, key, _ in checks]
        if refusal is not None and outcome.reason != "unavailable":
            keys = [(state.key, state.label) for state in refusal.violated]
            by = outcome.rules or (refusal.by,)
        if refusal is not None and refusal.ban is not None:
            by, ban = (f"ban by {refusal.by}",), refusal.ban.key
            keys = [(ban, by[0])] if ban.startswith(("header:", "tenant:")) else []
        rules_by_key = defaultdict[str, set[str]](set)
        for key, rule in keys:
            rules_by_key[key].add(rule)
        for key in (outcome.client, "everyone"):
            rules_by_key.pop(key, None)
        limits = {str(limit) for bucket, _, _ in checks for limit in bucket.limits}
        is_refused = refusal is not None and outcome.reason != "unavailable"
        reason, at_s = outcome.reason.value, outcome.began_us // 1_000_000
        return cls(at_s, outcome.client, reason, is_refused, by, rules_by_key, limits, ban, outcome)


class Seen(Observer):
    """What one worker decided: when it was written, and what; and what is not written yet."""

    def __init__(self) -> None:
        self.written: list[tuple[int, Decided]] = []
        self.unwritten: list[Decided] = []

    def request(self, outcome: Outcome, /) -> None:
        self.unwritten.append(Decided.of(outcome))


class Incident:
    """Some workers on one store, and what happens to them."""

    def __init__(self, seed: int, files: FollowedFiles) -> None:
        self.draw = random.Random(seed)
        self.files, self.reloads = files, list[int]()
        self.clock = FakeClock(NOW_US + self.draw.randrange(120_000_000))
        self.store: Any = slidegate.MemoryStore(clock=self.clock, wall_clock=self.clock)
        self.is_memory, self.is_away = self.draw.random() < 0.2, False
        if not self.is_memory:
            remote = SlowStore(self.clock, inline=True)
            remote.inner, remote.shared_rows = self.store, SharedRows(self.clock)
            remote.bans = RemoteBans(remote)
            self.store = remote
        names = {*self.draw.sample([*RULES], self.draw.randint(1, 8))}
        self.rules = [name for name in RULES if name in names]
        self.site = self.draw.choice(["3/minute", "9/minute", "9/minute; 30/hour"])
        self.options = [name for name, (share, _) in OPTIONS.items() if self.draw.random() < share]
        self.files.write("a.toml", FILE.format(40))
        self.workers = [self._worker() for _ in range(1 if self.is_memory else self.draw.randint(1, 3))]

    def _worker(self) -> Any:
        limiter, seen = Limiter(self.store, deadline="30s"), Seen()
        limiter.observe(seen)
        dashboard = Dashboard(limiter, token=TOKEN)
        rules = [Rule("/slidegate/{rest:path}", exempt=True), *(RULES[name]() for name in self.rules)]
        options = {name: OPTIONS[name][1]() for name in self.options}
        paths = ["/", "/health", "/login", "/api/{rest:path}", "/export", "/search", "/old", "/closed"]
        app: Any = Starlette(
            routes=[
                Mount("/slidegate", dashboard),
                *(Route(path, answer, methods=["GET", "POST"]) for path in paths),
                Route("/report", report),
            ],
            middleware=[
                Middleware(
                    slidegate.RateLimitMiddleware,
                    limiter=limiter,
                    rules=[*rules, Rule("*", self.site, name="site")],
                    **options,
                ),
                Middleware(slidegate.RateLimitMiddleware.from_file, path="a.toml", limiter=limiter),
            ],
        )
        app.limiter, app.seen, app.dashboard = limiter, seen, dashboard
        return app

    # -- what happens --------------------------------------------------------------------------------------------------

    def any_limiter(self) -> Limiter:
        limiter: Limiter = self.draw.choice(self.workers).limiter
        return limiter

    def address(self) -> str:
        return self.draw.choices(
            [
                f"{self.draw.choice(['198.51.100', '203.0.113', '192.0.2'])}.{self.draw.randrange(256)}",
                f"2001:db8:0:{self.draw.randrange(200):x}::{self.draw.randrange(1, 4)}",
                self.draw.choice(["203.0.113.7", "203.0.113.8", "198.51.100.200"]),
            ],
            [8, 1, 1],
        )[0]

    async def publish(self) -> None:
        """Let every worker write what it has counted, and that it lives."""
        for app in self.workers:
            with suppress(StoreError):
                await app.limiter.engine.workers.write(1.0)
                for one in app.seen.unwritten:  # an amount that has changed since is the one that is counted
                    one.limits.update(Decided.of(one.outcome).limits)
                await Statistics.of(app.limiter).publish()
                app.seen.written += [(self.clock.now_us, one) for one in app.seen.unwritten]
                app.seen.unwritten.clear()

    async def flood(self) -> None:
        path = self.draw.choice(PATHS)
        for _ in range(self.draw.randint(20, 80)):
            await self.visit(self.address(), self.draw.choice(PATHS), self.draw.randint(1, 4))
        loud, most = self.draw.choice([(0, 0), (1, 90), (120, 12)])
        for _ in range(loud):
            await self.visit(self.address(), path, self.draw.randint(4, most))

    async def visit(self, client: str, path: str, times: int) -> None:
        fields = {"x-api-key": f"k{self.draw.randrange(30)}", "x-tenant": f"t{self.draw.randrange(12)}"}
        fields |= {"x-answer": self.draw.choice(["401", "404", "500", "302", "fails"]), "x-vip": "1"}
        shares = {"x-api-key": 0.5, "x-tenant": 0.5, "x-answer": 0.3, "x-vip": 0.05}
        fields = {name: value for name, value in fields.items() if self.draw.random() < shares[name]}
        token = self.draw.choice([b"", f"token=q{self.draw.randrange(9)}".encode()])
        app, method = self.draw.choice(self.workers), "POST" if path == "/login" else "GET"
        for _ in range(times):
            with suppress(RuntimeError):
                await call(app, path, method, client=(client, 1), headers=fields, query_string=token)

    async def ban(self) -> None:
        keys: list[Any] = [
            self.address(),
            self.address(),
            "203.0.113.0/25",
            "2001:db8::/40",
            f"tenant:t{self.draw.randrange(12)}",
        ]
        key = self.draw.choice([*keys, header("X-API-Key").of(f"k{self.draw.randrange(30)}")])
        reason, by = self.draw.choice(["", "scan", "\u202etxt<b>"]), self.draw.choice(["ann", "bob"])
        await self.any_limiter().ban(key, self.draw.choice(["1m", "1h", "permanent"]), reason=reason, by=by)

    async def ban_many(self) -> None:
        """Ban more clients than workers list, which come once more, while one that is not banned floods."""
        many = [f"{network}.{number}" for network in ("198.51.100", "203.0.113") for number in range(16, 226)]
        for client in many:
            await self.any_limiter().ban(client, "1h", by="bob")
        for client in [*many, *["192.0.2.250"] * self.draw.randint(30, 400)]:
            await self.visit(client, "/", 1)
        await self.publish()

    async def unban(self) -> None:
        if keys := [ban.key async for ban in self.any_limiter().bans()]:
            await self.any_limiter().unban(self.draw.choice(keys), by="ann")

    async def change(self) -> None:
        name, amount = self.draw.choice(["site", "api", "report"]), self.draw.randint(1, 20)
        with suppress(slidegate.ConfigurationError):  # nearly the name of another limit
            span = self.draw.choice(["2m", "2h"])
            await self.any_limiter().override(name, f"{amount}/minute", span, by="bob", reason="slow")

    async def restore(self) -> None:
        await self.any_limiter().restore(self.draw.choice(["site", "*"]), by="ann")

    async def off(self) -> None:
        if self.draw.random() < 0.3:
            await self.any_limiter().override("*", "off", self.draw.choice(["1m", "10m"]), by="ann", reason="wrong")

    async def outage(self) -> None:
        if not self.is_memory:
            self.fail(StoreUnavailable("gone"))
            await self.flood()
            self.fail(None)
            self.clock.advance("3s")
            for app in self.workers:
                await call(app, client=("192.0.2.99", 1))

    def fail(self, error: Exception | None) -> None:
        self.store.error, self.store.shared_rows.is_failing = error, error is not None

    async def reload(self) -> None:
        self.reloads.append(self.clock.now_us // 1_000_000)
        self.files.write("a.toml", FILE.format(40 + len(self.reloads)))
        for app in self.workers * 2:  # a change is taken at the second look
            self.files.clock.advance("1s")
            await call(app, "/slidegate/", client=("127.0.0.1", 1))
            end_of_looks()

    async def wait(self) -> None:
        seconds = self.draw.choice([1, 5, 20, 60, 61, 150, 400])
        self.clock.advance(us=seconds * 1_000_000 + self.draw.randrange(1_000_000))

    async def play(self) -> None:
        for app in self.workers:
            await call(app, client=("192.0.2.99", 1))
        deeds = {self.flood: 4, self.ban: 2, self.wait: 2, self.unban: 1, self.change: 1, self.restore: 1, self.off: 1}
        deeds |= {self.outage: 1, self.reload: 1}
        for deed in self.draw.choices([*deeds], [*deeds.values()], k=self.draw.randint(4, 12)):
            await deed()
            await self.publish()
            self.clock.advance("1s")
            for app in self.workers:
                await app.limiter.overrides()
        if self.draw.random() < 0.15:
            await self.ban_many()
        self.is_away = not self.is_memory and self.draw.random() < 0.05
        if self.is_away:
            self.fail(StoreUnavailable("gone"))
            await self.flood()

    # -- what is asked -------------------------------------------------------------------------------------------------

    async def get(self, path: str, **asked: str) -> Answer:
        fields = {"host": HOST, "authorization": basic(TOKEN), "sec-fetch-site": "same-origin"}
        app = self.workers[0]
        return await call(app.dashboard, f"/{path}", headers=fields, query_string=urlencode(asked).encode())

    async def page(self, path: str, **asked: str) -> list[str]:
        """Return the lines of a page, below its head."""
        answer = await self.get(path, **asked)
        assert answer.status == 200, answer.body
        lines = Page(answer).lines
        return lines[lines.index("UTC") + 1 :]

    async def api(self, name: str, **asked: str) -> Any:
        answer = await self.get(f"api/{name}", **asked)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def last_refused_min(self, client: str) -> int:
        """Return the minute in which the last refusal of a client was written."""
        written = [pair for app in self.workers for pair in app.seen.written]
        return max(at_us for at_us, one in written if one.is_refused and one.client == client) // MINUTE_US

    def decided(self, minutes: float = inf) -> list[Decided]:
        """Return what was written in the last full minutes and the running one."""
        first = self.clock.now_us // MINUTE_US - minutes
        return [one for app in self.workers for at_us, one in app.seen.written if at_us // MINUTE_US >= first]
