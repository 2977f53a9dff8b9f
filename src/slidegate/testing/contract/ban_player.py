"""Plays programs of `ban_programs` to a store and to the reference, and compares them after every move."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from ...core.addresses import parse_address
from ...core.bans.in_force import Ban, Guarded
from ...core.bans.policy import BanPolicy
from ...core.bans.standing_view import KeptStanding, policy_standing
from ...core.decision import Bucket, Reason
from ...core.limits import parse_limits
from ...core.store import Event, Store
from ..clock import FakeClock
from ..observers import RecordingObserver
from ..reference.ban_model import BanModel, Made, Stand
from .ban_programs import CLIENTS, BanMove, HandBan, Hit, Restart, Strike, Unban, Wait, WaitForEnd
from .player import same, settle

NewStore: TypeAlias = Callable[[FakeClock], Store | Awaitable[Store]]
HAND = "hand"
TOLD = ("banned", "unbanned", "shadow_banned")


class BanPlayer:
    """Plays a program.

    Args:
        new_store: Makes an empty store that tells the time by the clock that it is given.
        start_us: What the clock shows at first.
        policies: The policies of the program.
    """

    def __init__(self, new_store: NewStore, start_us: int, policies: Sequence[BanPolicy]) -> None:
        self.new_store = new_store
        self.clock = FakeClock(start_us)
        self.policies = policies
        self.ladders = [*policies, *(policy.prefix for policy in policies if policy.prefix is not None)]
        self.model = BanModel()
        self.named: set[str] = set()
        self._bucket = Bucket("rule", parse_limits("3600/400d @3600"))
        self._ahead_us = 0  # of the reference, whose time never steps back

    @property
    def now_us(self) -> int:
        """The time of the reference."""
        return self.clock.now_us + self._ahead_us

    async def play(self, moves: Sequence[BanMove]) -> None:
        """Play all moves, one after the other."""
        await self._open()
        try:
            for number, move in enumerate(moves):
                try:
                    await self._play(move)
                    await self._compare()
                except AssertionError as error:
                    played = "".join(f"\n  {move}" for move in moves[: number + 1])
                    rules = [vars(policy) for policy in self.policies]
                    raise AssertionError(f"{error}\nat {self.clock} after{played}\nunder {rules}") from error
        finally:
            await settle(self.store.close())

    async def _open(self) -> None:
        self.heard = RecordingObserver()
        self.store = await settle(self.new_store(self.clock))
        self.store.observe(self.heard)

    async def _play(self, move: BanMove) -> None:
        match move:
            case Strike(policy, client, weight):
                await self._strike(self.policies[policy], CLIENTS[client], weight)
            case Hit(client, peeks):
                await self._hit(CLIENTS[client], peeks)
            case HandBan(key, length_us):
                self.named.add(key)
                made = await settle(self.store.bans.ban(key, length_us, "why", HAND))
                same(_shown(made), _shown(self.model.ban(key, length_us, HAND, self.now_us)))
            case Unban(key):
                await self._unban(key)
            case Wait(span_us):
                self.clock.advance(us=span_us)
            case WaitForEnd(offset_us):
                ends_us = [ban.ends_us for ban in self.model.active(self.now_us) if ban.ends_us is not None]
                self.clock.advance(us=max(min(ends_us, default=0) + offset_us - self.now_us, 0))
            case Restart(ahead_us, again):
                await self._restart(max(self.clock.now_us + ahead_us, 0), again)

    async def _strike(self, policy: BanPolicy, client: tuple[str, str, str], weight: int) -> None:
        _, key, prefix = client
        self.named.update((key, prefix))
        made = await settle(self.store.bans.strike(policy, key, weight, "why", prefix))
        expected = self.model.strike(policy, key, weight, prefix, self.now_us)
        same(made and _shown(made), expected and _shown(expected))

    async def _hit(self, client: tuple[str, str, str], peeks: bool) -> None:
        address, key, _ = client
        ask = self.store.peek if peeks else self.store.hit
        parsed = parse_address(address)
        guarded: tuple[Guarded, ...] = () if parsed is None else (parsed,)
        expected = (self.model.peek if peeks else self.model.hit)(address, self.now_us)
        decision = await settle(ask(((self._bucket, key, 0),), guarded))
        found = await settle(self.store.bans.find((*guarded, key)))
        same(decision.allowed, not expected)
        if not expected:
            same((decision.reason, decision.ban, found), (Reason.OK, None, None))
            return
        lefts_us = [self._expected(ban)[3] for ban in expected]
        left_us = None if None in lefts_us else max(left_us for left_us in lefts_us if left_us is not None)
        same((decision.reason, decision.retry_after_us), (Reason.BANNED, left_us))
        last = [_shown(ban) for ban in expected if self._expected(ban)[3] == left_us]
        for ban in (decision.ban, found):
            assert ban is not None
            assert _shown(ban) in last, f"the store says {ban}, the reference one of {last}"

    async def _unban(self, key: str) -> None:
        changed = await settle(self.store.bans.unban(key, HAND))
        # A store that does not know the policy yet may drop an empty standing whenever it likes.
        if self.model.knows(self.ladders, key, self.now_us):
            same(changed, True)
        elif key not in self.named:
            same(changed, False)
        self.model.unban(key, HAND, self.now_us)

    async def _restart(self, start_us: int, again: bool) -> None:
        rows = json.loads(json.dumps(list(await settle(self.store.bans.dump()))))
        await settle(self.store.close())
        before_us, was_us = self.now_us, self.clock.now_us
        self.clock = FakeClock(start_us)
        self._ahead_us = before_us + max(start_us - was_us, 0) - start_us
        await self._open()
        self.model.restart()
        for _ in range(1 + again):
            same(await settle(self.store.bans.load(rows)), len(self.model.active(self.now_us)))

    async def _compare(self) -> None:
        in_force = self.model.active(self.now_us)
        active = await settle(self.store.bans.active())
        same(sorted(map(_shown, active)), sorted(map(_shown, in_force)))
        rows = list(await settle(self.store.bans.dump()))
        written_us = rows[0]["written_us"]
        dumped = [
            (row["ban"], row["by"], row["rung"], row["ends_us"] and row["ends_us"] - written_us)
            for row in rows
            if "ban" in row
        ]
        same(sorted(dumped, key=repr), sorted(map(self._expected, in_force), key=repr))
        changes = [(change.kind, change.ban.key, change.by) for change in await settle(self.store.bans.history())]
        same(changes, self.model.changes)
        told = [event for event in self.heard.events if event.kind in TOLD]
        same([_told(event) for event in told if event.kind != "shadow_banned"], [row[:2] for row in changes])
        same(
            [_told(event)[1] for event in told if event.kind == "shadow_banned"], [key for _, key in self.model.reports]
        )
        now_us, kept = await settle(self.store.bans.standings(sorted(self.named - {""})))
        looked = {(one.policy, one.key): one for one in kept}
        stands = {(row["policy"], row["standing"]): row for row in rows if "standing" in row}
        for policy in self.ladders:
            for key in self.named:
                row = stands.get((policy.name, key))
                stand = Stand(0, 0) if row is None else _stand(row, policy, written_us)
                expected = self.model.stand(policy, key, self.now_us)
                same((policy.name, key, stand), (policy.name, key, expected))
                seen = _seen(looked.get((policy.name, key)), policy, now_us)
                same((policy.name, key, seen), (policy.name, key, expected))

    def _expected(self, ban: Made) -> tuple[str, str, int, int | None]:
        """Return the facts of a dumped ban: key, by, rung and the microseconds that are left."""
        return ban.key, ban.by, ban.rung, None if ban.ends_us is None else ban.ends_us - self.now_us


def _shown(ban: Ban | Made) -> tuple[str, str, int, int]:
    """Return key, by, rung and length of a ban; -1 for ever."""
    made_us = ban.at_us if isinstance(ban, Made) else ban.made_us
    return ban.key, ban.by, ban.rung, -1 if ban.ends_us is None else ban.ends_us - made_us


def _told(event: Event) -> tuple[str, Any]:
    return event.kind, event.details["key"]


def _seen(kept: KeptStanding | None, policy: BanPolicy, now_us: int) -> Stand:
    """Read off where a key stands, as an operator sees it."""
    stands = None if kept is None else policy_standing(kept, policy, now_us)
    return Stand(0, 0) if stands is None else Stand(stands.rung, min(stands.strikes, policy.after.amount))


def _stand(row: Any, policy: BanPolicy, now_us: int) -> Stand:
    """Work out where a key stands from the dump of a store."""
    clean_us = now_us - max(row["last_us"], row["until_us"] or row["last_us"])
    weight = sum(weight for at_us, weight, _ in row["strikes"] if at_us > now_us - policy.after.window_us)
    return Stand(max(row["rung"] - max(clean_us, 0) // policy.forgive_us, 0), min(weight, policy.after.amount))
