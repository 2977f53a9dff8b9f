"""The console of a limiter: operators see and change it there, in all of its workers.

The admin API and the dashboard ask the same console, so both say the same. It is made once for a limiter, and from then
on an `Onlooker` watches in this process and publishes what it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

from ..core.decision import Decision
from ..core.errors import ConfigurationError, SlidegateError
from ..core.logs import escaped
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.events import Subscription
from ..stores.system_clock import system_us
from ..web.keys import Key, cookie, header, query
from .bans_shown import ban_of, ban_shown, bans_page
from .clients_shown import buckets_called, client_shown, clients_shown, windows_of
from .figures_shown import history_shown, shadow_shown, stats_shown, workers_shown
from .gates_shown import buckets_of, config_shown, lists_shown, rules_shown
from .onlooker import LOGGED, Onlooker, UnreadDecisions
from .pages import pack, unpack
from .parameters import Unusable
from .seen_by_all import SECTION, Seen, gather, published

_making: Final = Lock()
KEY_KINDS: Final = ("header", "cookie", "query")
_MOST_WORKERS: Final = 200


class Missing(SlidegateError):
    """Something that is asked for is not there; the message names it."""


class Console:
    """Operators see and change one limiter here; see `of`."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._onlooker = onlooker = Onlooker(limiter.engine.statistics.now_us)
        self._pausing = Lock()
        self._refusals: Subscription | None = None
        self._unread = UnreadDecisions(self._read)
        limiter.engine.listen(self._unread.add)
        limiter.observe(onlooker.hear, kinds=LOGGED)
        limiter.observe(onlooker.hear_shadow, kinds=["shadow_refused"], inline=True)
        self._listen()
        limiter.engine.publisher.add_section(SECTION, self._published)

    @classmethod
    def of(cls, limiter: Limiter) -> Console:
        """Return the console of a limiter, which is made at the first call.

        Raises:
            ConfigurationError: It is no limiter.
        """
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {limiter!r}")
        with _making:
            console = limiter.engine.console
            if not isinstance(console, Console):
                console = limiter.engine.console = Console(limiter)
            return console

    # -- to see ------------------------------------------------------------------------------------------------------

    async def stats(self, window: str = "5m") -> dict[str, Any]:
        """Return the figures of all workers: GET stats."""
        return await stats_shown(self._limiter, window)

    async def history(self, window: str = "1h", rule: str | None = None, route: str | None = None) -> dict[str, Any]:
        """Return the figures step by step: GET history."""
        return await history_shown(self._limiter, window, rule, route)

    async def rules(self) -> dict[str, Any]:
        """Return the rules in force: GET rules."""
        return rules_shown(self._limiter)

    async def clients(self, sort: str = "requests", limit: int = 50, cursor: str | None = None) -> dict[str, Any]:
        """Return the busiest clients: GET clients."""
        return await clients_shown(self._limiter, self._onlooker, await self._seen(), sort, limit, cursor)

    async def client(self, key: str) -> dict[str, Any]:
        """Return all about one client: GET client."""
        return await client_shown(self._limiter, self._onlooker, await self._seen(), key)

    async def refusals(self, limit: int = 100) -> dict[str, Any]:
        """Return the last refusals: GET refusals."""
        return {"refusals": (await self._seen()).refusals[:limit]}

    async def shadow(self, window: str = "1h") -> dict[str, Any]:
        """Return how many requests shadow rules would have refused: GET shadow."""
        return await shadow_shown(self._limiter, await self._seen(), window)

    async def bans(
        self, cursor: str | None = None, limit: int = 100, policy: str | None = None, q: str | None = None
    ) -> dict[str, Any]:
        """Return a page of the bans in force: GET bans."""
        return await bans_page(self._limiter, cursor, limit, policy, q)

    async def lists(self) -> dict[str, Any]:
        """Return the block and allow lists: GET lists."""
        return {"lists": lists_shown(self._limiter, reversed(self._onlooker.events()))}

    async def events(self, after: str | None = None, limit: int = 100, kind: str | None = None) -> dict[str, Any]:
        """Return the last events, newest first: GET events."""
        known: dict[str, int] = {} if after is None else unpack(after, {})
        if not all(isinstance(number, int) for number in known.values()):
            raise Unusable([("after", "expected the `next` of an earlier answer")])
        entries = (await self._seen()).events
        newest = dict(known)
        for worker, _, event in entries:
            newest[worker] = max(newest.get(worker, 0), event["number"])
        found = [
            {
                "seq": f"{worker}.{event['number']}",
                **{name: value for name, value in event.items() if name != "number"},
                "worker": name,
            }
            for worker, name, event in entries
            if event["number"] > known.get(worker, 0) and kind in (None, event["kind"])
        ]
        latest = dict(list(newest.items())[-_MOST_WORKERS:])
        return {"events": found[:limit], "next": pack(latest)}

    async def config(self) -> dict[str, Any]:
        """Return the settings, and which workers there are: GET config."""
        sections = await self._limiter.engine.all_workers.sections(SECTION)
        workers = [section.worker for section in sections]
        return {**config_shown(self._limiter), "workers": workers_shown(workers, system_us())}

    # -- to change ---------------------------------------------------------------------------------------------------

    async def ban(self, target: str, duration: str, reason: str, by: str) -> dict[str, Any]:
        """Ban a target; a ban that it has is replaced. Of two at once the last one holds: POST bans."""
        return ban_shown(await self._limiter.ban(target, duration, reason=reason, by=by))

    async def extend(self, target: str, duration: str, by: str) -> dict[str, Any]:
        """Let a ban last so long from now on: PATCH bans.

        Raises:
            Missing: The target has none.
        """
        ban = await ban_of(self._limiter, target)
        if ban is None:
            raise Missing(f"{escaped(target, 80)!r} has no ban")
        return ban_shown(await self._limiter.ban(target, duration, reason=ban.reason, by=by))

    async def lift(self, target: str, by: str) -> dict[str, Any]:
        """Take a ban back, and forgive it: DELETE bans.

        Raises:
            Missing: There is nothing to take back.
        """
        if not await self._limiter.unban(target, by=by):
            raise Missing(f"{escaped(target, 80)!r} has no ban and no strikes")
        return {"target": self._limiter.key_for(target)}

    async def reset(self, key: str) -> dict[str, Any]:
        """Forget the windows of a key: POST keys/reset."""
        forgotten = await self._limiter.reset(key)
        return {"key": self._limiter.key_for(key), "forgotten": forgotten}

    async def charge(self, key: str, rule: str, units: int) -> dict[str, Any]:
        """Charge units to a key under a rule: POST keys/charge.

        Raises:
            Missing: There is no such rule.
            Unusable: Several rules have this name.
        """
        buckets = buckets_called(self._limiter, rule)
        if not buckets:
            raise Missing(f"no rule with fixed limits is called {escaped(rule, 80)!r}; GET rules has their names")
        if len(buckets) > 1:
            identities = ", ".join(repr(bucket.rule) for bucket in buckets[:8])
            message = f"several rules are called {escaped(rule, 80)!r}; give an identity: {identities}"
            raise Unusable([("rule", message)])
        known = self._limiter.key_for(key)
        decision = await self._limiter.charge_all(((buckets[0], known, units),))
        return {"key": known, "windows": windows_of(decision)}

    async def find(self, kind: str, name: str, value: str) -> dict[str, Any]:
        """Return the key that gates make of a value that clients send: POST keys/find."""
        return {"key": _key_of(self._limiter, kind, name, value.encode(errors="surrogatepass"))}

    def _listen(self) -> None:
        """Hear of refusals, unless enough of them were heard in this second."""
        if self._refusals is None and self._onlooker.rested():
            with self._pausing:
                if self._refusals is None:
                    # A note takes less than to wake another thread for it.
                    self._refusals = self._limiter.observe(self._hear_refusal, kinds=["refused"], inline=True)

    def _hear_refusal(self, event: Event) -> None:
        if not self._onlooker.hear_refusal(event):
            with self._pausing:
                if self._refusals is not None:
                    self._refusals.remove()
                    self._refusals = None

    def _read(self, decisions: Sequence[Decision]) -> None:
        self._listen()
        self._onlooker.read(decisions)

    async def _seen(self) -> Seen:
        self._unread.read()
        self._listen()
        return await gather(self._limiter, self._onlooker)

    def _published(self) -> Any:
        self._unread.read()
        self._listen()
        return published(self._onlooker)


def _key_of(limiter: Limiter, kind: str, name: str, value: bytes) -> str:
    """Return the key of a value, as the gates of this process make it."""
    if kind == "header":
        _, identity = header(name), f"header:{name.lower()}"
        for rule, _ in buckets_of(limiter):
            # A header has any case, but its digest has the one in which the rule names it.
            if isinstance(rule.key, Key) and rule.key.identity.partition("|")[0] == identity:
                return rule.key.find({"type": "http", "headers": [(name.lower().encode(), value)]}, limiter, "")
    elif kind == "cookie":
        cookie(name)
    else:
        query(name)
    return limiter.digest(f"{kind}:{name}", value)
