"""Plays random strikes, bans, times and restarts to a store and to the reference, and compares them after each move."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

from slidegate import BanPolicy
from slidegate.core import Ban, BanSubject, Bucket, Reason, Store, parse_address, parse_limits
from slidegate.core.addresses import BITS, format_network
from slidegate.core.bans.ban import OWN_PREFIX, ban_key
from slidegate.core.bans.rows import HEADER, from_rows
from slidegate.testing import FakeClock, RecordingObserver

from ..reference.ban_model import BanModel, Made
from .player import listed, same, settle, shown_with
from .programs import SECOND_US, YEAR_2100_US, Choices

HAND = "hand"
MANY = Bucket("rule", parse_limits("3600/400d @3600"))
EVERYONE = "everyone"
COMPARED = ("banned", "unbanned", "shadow_banned")

# (a client, its key)
CLIENTS = (
    ("192.0.2.7", "192.0.2.7"),
    ("192.0.2.8", "192.0.2.8"),
    ("192.0.2.9", "192.0.2.9"),
    ("::ffff:192.0.2.9", "192.0.2.9"),
    ("192.0.3.0", "192.0.3.0"),
    ("2001:db8:1:2::a", "2001:db8:1:2::/64"),
    ("2001:db8:1:3::b", "2001:db8:1::/56"),
    ("user:ann", "user:ann"),
)
NETWORKS = ("192.0.2.0/24", "192.0.2.8/31", "2001:db8:1::/56", "2001:db8:1:2::a/128", "2001:db8::/32")
BANNED_BY_HAND = (*(key for _, key in CLIENTS), *NETWORKS)


class BanPlayer:
    """Chooses policies, a start time, and moves until the choices are used up, and plays them.

    Args:
        new_store: Returns an empty store that reads the time from the given clock.
        choices: The source of choices.
    """

    def __init__(self, new_store: Callable[[FakeClock], Store | Awaitable[Store]], choices: Choices) -> None:
        self.new_store = new_store
        self.choices = choices
        self.clients = (*CLIENTS, drawn_client(choices), drawn_client(choices))
        self.policies = [drawn_policy(choices, name) for name in ("login", "scan")[: choices.pick((1, 2))]]
        self.clock = FakeClock(choices.pick((0, choices.below(10**9), YEAR_2100_US)))
        self.model = BanModel()
        self.moves: list[str] = []
        self.exports: list[tuple[Sequence[Any], list[Made]]] = []
        self.hits = Counter[str]()  # those that are counted, by key

    @property
    def now_us(self) -> int:
        """The time of the clock."""
        return self.clock.now_us

    async def play(self) -> None:
        """Play all moves in order."""
        await self._open()
        try:
            with shown_with(self.moves, lambda: self.clock.now_us, [vars(policy) for policy in self.policies]):
                while self.choices:
                    await self._move()
                    await self._compare()
        finally:
            await settle(self.store.close())

    async def _open(self) -> None:
        self.observer = RecordingObserver()
        self.store = await settle(self.new_store(self.clock))
        self.store.observe(self.observer)

    async def _move(self) -> None:
        """Choose and play the next move, mostly strikes."""
        choices = self.choices
        kind, client = choices.below(32), choices.pick(self.clients)
        if kind == 0:  # shrinking turns bytes to 0, which makes the program shorter
            await self._reset(choices.pick((client[1], None)))
        if kind < 15:
            await self._strike(choices.pick(self.policies), client, choices.pick((1, 1, 2, 3, 64, 1_000)))
        elif kind < 20:
            await self._hit(client, peeks=kind == 19)
        elif kind < 24:
            self._wait(span_us(choices))
        elif kind < 27:
            ends_us = [ban.until_us for ban in self.model.active(self.now_us) if ban.until_us is not None]
            self._wait(max(min(ends_us, default=0) + choices.pick((0, -1, 1)) - self.now_us, 0))
        elif kind < 29:
            banned = choices.pick((choices.pick(BANNED_BY_HAND), network_of(client, choices)))
            await self._ban(banned, choices.pick((None, span_us(choices), 2 * SECOND_US)))
        elif kind == 29:
            ahead_us = choices.pick((0, span_us(choices), -span_us(choices), -choices.below(2**40)))
            await self._restart(max(self.clock.now_us + ahead_us, 0), loads=choices.pick((2, 1)))
        elif kind == 30:
            await self._export()
            await self._import(choices.pick(self.exports), self._drawn_export())
        else:
            await self._unban(choices.pick((*BANNED_BY_HAND, *(ban.key for ban in self.model.active(self.now_us)))))

    async def _reset(self, key: str | None) -> None:
        """Reset a key, or all keys, which leaves bans, levels and strikes."""
        await settle(self.store.reset_all() if key is None else self.store.reset(key))
        self.hits = Counter() if key is None else self.hits - Counter({key: self.hits[key]})

    async def _strike(self, policy: BanPolicy, client: tuple[str, str], weight: int) -> None:
        _, key = client
        self.moves.append(f"{weight} strikes of {key} under {policy.name}")
        made = await settle(self.store.bans.strike(policy, key, weight, "why"))
        expected = self.model.strike(policy, key, weight, self.now_us)
        same(made and _shown(made), expected and _shown(expected))

    async def _hit(self, client: tuple[str, str], peeks: bool) -> None:
        address, key = client
        self.moves.append(f"a {'peek' if peeks else 'hit'} of {address}")
        ask = self.store.peek if peeks else self.store.hit
        parsed = parse_address(address)
        subjects: tuple[BanSubject, ...] = () if parsed is None else (parsed,)
        expected = self.model.refusing(address, key, self.now_us)
        checks = ((MANY, key, 1), (MANY, EVERYONE, 1))
        decision = await settle(ask(checks, subjects))
        found_ban = await settle(self.store.bans.find((*subjects, key)))
        same(decision.allowed, not expected)
        if not expected:
            same((decision.reason, decision.ban, found_ban), (Reason.OK, None, None))
            hits = self.hits + Counter([key, EVERYONE])
            same([state.remaining for state in decision.states], [3_600 - hits[whose] for _, whose, _ in checks])
            self.hits = self.hits if peeks else hits
            return
        same(await settle(self.store.refund(decision.begin_refund())), False)
        longest = max(expected, key=lambda ban: inf if ban.until_us is None else ban.until_us)
        left_us = None if longest.until_us is None else longest.until_us - self.now_us
        same((decision.reason, decision.retry_after_us, decision.states), (Reason.BANNED, left_us, ()))
        last = [_shown(ban) for ban in expected if ban.until_us == longest.until_us]
        for ban in (decision.ban, found_ban):
            assert ban is not None
            assert _shown(ban) in last, f"the store returned {ban}, the reference one of {last}"

    def _wait(self, wait_us: int) -> None:
        self.moves.append(f"a wait of {wait_us} us")
        self.clock.advance(us=wait_us)

    async def _ban(self, key: str, length_us: int | None) -> None:
        self.moves.append(f"a ban of {key} for {length_us} us")
        made = await settle(self.store.bans.ban(key, length_us, "why", HAND))
        same(_shown(made), _shown(self.model.ban(key, length_us, HAND, self.now_us)))

    async def _unban(self, key: str) -> None:
        self.moves.append(f"an unban of {key}")
        changed = await settle(self.store.bans.unban(key, HAND))
        same(changed, self.model.knows(self.policies, key, self.now_us))
        self.model.unban(key, self.now_us)

    async def _restart(self, start_us: int, loads: int) -> None:
        """Replace the store by a new one at another time, which loads an export of the old one."""
        self.moves.append(f"a restart at {start_us} us")
        self.hits.clear()
        await self._export()
        await settle(self.store.close())
        self.model = BanModel()
        self.clock = FakeClock(start_us)
        await self._open()
        for _ in range(loads):
            await self._import(self.exports[-1])

    async def _export(self) -> None:
        """Keep an export, and the bans of the reference."""
        bans = await listed(self.store)
        rows = json.loads(json.dumps([HEADER, *(ban._asdict() for ban in bans)]))
        self.exports.append((rows, self.model.active(self.now_us)))

    def _drawn_export(self) -> tuple[Sequence[Any], list[Made]]:
        """Return a ban that another store has made, by hand or by a policy."""
        key, until_us = self.choices.pick(BANNED_BY_HAND), self.now_us + span_us(self.choices)
        made = Made("other", key, self.now_us, until_us, level=self.choices.pick((0, 1)))
        return [HEADER, Ban(key, "why", "other", made.level, self.now_us, until_us)._asdict()], [made]

    async def _import(self, *exports: tuple[Sequence[Any], list[Made]]) -> None:
        """Import exports of this or of earlier stores, in one call."""
        rows = [HEADER, *(row for exported, _ in exports for row in exported[1:])]
        self.moves.append(f"an import of {rows[1:]}")
        bans = [ban for _, bans in exports for ban in bans]
        same(await settle(self.store.bans.load([*from_rows(rows)])), self.model.load(bans, self.now_us))

    async def _compare(self) -> None:
        in_force = self.model.active(self.now_us)
        same(sorted(map(_shown, await listed(self.store))), sorted(map(_shown, in_force)))
        same(
            [(event.kind, event.details["key"]) for event in self.observer.events if event.kind in COMPARED],
            self.model.changes,
        )


def drawn_client(choices: Choices) -> tuple[str, str]:
    """Choose a client with an address of many zeros, with any address, or with a key that looks a little like one."""
    zeros = sum(choices.pick((0, 0, 0, 1, 0xDB8)) << 16 * index for index in range(8))
    version, value = choices.pick(((6, zeros), (6, choices.below(2**128)), (4, choices.below(2**32))))
    if version == 4:
        text = format_network(4, value, 32)
        return text, text
    value |= 1 << 125  # beside the addresses that contain one of IPv4
    address = format_network(6, value, 128).partition("/")[0], format_network(6, value, 64)
    return choices.pick((address, *((key, key) for key in ("key:fade:42/7", "\xff" * 32, "a\0b", "user:1.2.3"))))


def network_of(client: tuple[str, str], choices: Choices) -> str:
    """Choose a network that a client is in, however large; the key of a client without an address."""
    address, key = client
    parsed = parse_address(address)
    if parsed is None:
        return key
    version, value = parsed
    prefix = 1 + choices.below(BITS[version])
    # A ban of the network by which a client is counted is one of that client alone.
    return key if prefix == OWN_PREFIX[version] else ban_key(format_network(version, value, prefix))


def drawn_policy(choices: Choices, name: str) -> BanPolicy:
    """Choose a policy with few strikes and short times; one in four is a shadow policy."""
    duration_s = choices.pick((1, 2, 10))
    return BanPolicy(
        f"{choices.pick((1, 2, 3, 5, 64))}/{choices.pick((1, 3, 10, 60))}s",
        f"{duration_s}s",
        factor=choices.pick((2, 1, 4)),
        longest=f"{duration_s * choices.pick((8, 1, 30))}s",
        forgive=f"{choices.pick((5, 1, 30, 86_400))}s",
        name=name,
        shadow=not choices.below(4),
    )


def span_us(choices: Choices) -> int:
    """Choose a span of time, often a whole number of seconds or a microsecond more or less."""
    whole_us = choices.pick((1, 2, 3, 5, 10, 30, 60)) * SECOND_US
    return choices.pick((whole_us, whole_us - 1, whole_us + 1, choices.below(5 * SECOND_US), 86_400 * SECOND_US))


def _shown(ban: Ban | Made) -> tuple[str, str, int, int, int]:
    """Return key, author, level, start and end of a ban; a permanent ban ends at -1."""
    return ban.key, ban.by, ban.level, ban.since_us, -1 if ban.until_us is None else ban.until_us
