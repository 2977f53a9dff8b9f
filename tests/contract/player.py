"""Plays a random program to a store and to the reference, and compares every decision."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from slidegate import Decision, Limit, Quota
from slidegate.core import AnyLimit, Ban, Bucket, Check, Concurrency, CountsPermits, LimitState, Store
from slidegate.limiter.inspect import states_in
from slidegate.stores.memory.store import MemoryStore
from slidegate.stores.shared import run_unless_on_loop
from slidegate.testing import FakeClock

from ..reference.model import Model, Note, Verdict, verdict_of
from .programs import Align, Ask, Change, Debt, Look, Move, Program, Question, Refund, Reset, Step

Answered = TypeVar("Answered")
Asks: TypeAlias = Callable[[Sequence[Check]], Decision | Awaitable[Decision]]
Expects: TypeAlias = Callable[[Sequence[Check], int], tuple[Verdict, list[Note]]]


async def settle(answer: Answered | Awaitable[Answered]) -> Answered:
    """Return the result of a store's method; await it if it is awaitable."""
    if inspect.isawaitable(answer):
        waited: Answered = await answer
        return waited
    return answer


def listed(store: Any) -> Any:
    """Return the bans in force of a store, or on an event loop an awaitable of them."""
    return run_unless_on_loop(_listed(store.bans.pages()))


async def _listed(pages: Iterable[Sequence[Ban]] | AsyncIterator[Sequence[Ban]]) -> list[Ban]:
    if isinstance(pages, AsyncIterator):
        return [ban async for page in pages for ban in page]
    return [ban for page in pages for ban in page]


async def views_of(store: Store, key: str, limited: Bucket) -> list[LimitState]:
    """Return the windows of a key as a store reports them."""
    snapshot = await settle(store.inspect([(limited, key, 0)]))
    return states_in(snapshot, [(limited, key, 0)])


async def as_peek_says(store: Store, key: str, limited: Bucket) -> list[LimitState]:
    """Return the windows of a key, and assert that they match a peek."""
    views = await views_of(store, key, limited)
    decision = await settle(store.peek(((limited, key, 0),)))
    for view, state, reading in zip(views, decision.states, decision.readings, strict=True):
        assert view.used == reading[0]
        shown = view.name, view.rule, view.limit, view.remaining, view.more_after_us, view.reset_after_us
        assert shown == (state.name, state.rule, *state[3:5], *state[6:8])
    return views


def uncounted(bucket: Bucket) -> Bucket:
    """Return the same limits and windows without `count_denied`."""
    twin = copy(bucket)
    twin.count_denied = False
    return twin


class Player:
    """Plays a program to a store and to the reference, and compares every decision.

    Args:
        store: An empty store that reads the time from `clock`; if it has no permits, there is a window in their place.
        clock: The clock, at the start time of the program.
        program: The program.
        repeats: Whether the store repeats a refusal for a second, with old numbers of windows that have room.
    """

    def __init__(self, store: Store, clock: FakeClock, program: Program, *, repeats: bool = False) -> None:
        self.store = store
        self.repeats = repeats
        self.clock = clock
        self.model = Model()
        self.moves = program.moves
        self.buckets = [
            Bucket(f"rule-{number}", _within(store, limits), count_denied=counted)
            for number, (limits, counted) in enumerate(zip(program.rules, program.count_denied, strict=True))
        ]
        self.named: set[tuple[int, str]] = set()
        self.charged: list[tuple[Decision, list[Note]]] = []
        self.admitted: list[tuple[int, Decision]] = []
        self.holding: list[Decision] = []

    async def play(self) -> None:
        """Play all moves in order, then check that all units expire at the reported times, and permits by refunds."""
        played: list[object] = []
        rules = [(bucket, bucket.count_denied) for bucket in self.buckets]
        with shown_with(played, self.clock, rules):
            for move in self.moves:
                played.append(move)
                await self._play(move)
                self._agree(permits_of(self.store), self.model.permits_held())
            played.append("peeks until all is empty")
            await self.look_after_all()  # after a changed amount, a window converts its units at the next hit
            for rule, key in sorted(self.named):
                await self._check_expiry(key, uncounted(self.buckets[rule]))
            played.append("hours later, a reset of all keys, and refunds of all permits")
            for _ in range(4):
                self.clock.advance("1h")
                await self.look_after_all()
            await self._reset(None)
            for which in range(len(self.charged)):
                await self._refund(which, permits=True)
            same(permits_of(self.store), 0)

    async def _play(self, move: Move) -> None:
        match move:
            case Ask(question, patient, plain):
                await self._ask(question, patient, plain)
            case Look(question):
                checks = self._checks(question)
                expected = self.model.peek(checks, self.clock.now_us)
                peeked = await settle(self.store.peek(checks))
                self._agree(verdict_of(peeked), expected)
                same(await settle(self.store.refund(peeked.begin_refund())), False)
            case Debt(question):
                await self._charge(self.store.charge, self.model.charge, question)
            case Refund(which, permits):
                await self._refund(which, permits)
            case Reset(key, rule):
                await self._reset(key, rule)
            case Step(span_us) if span_us < 0:
                await self._step_back(span_us)
            case Step(span_us):
                self.clock.advance(us=span_us)
            case Align(slice_us, offset_us):
                self.clock.advance(us=slice_us - self.clock.now_us % slice_us + offset_us)
            case Change():
                self._change(move)

    def _agree(self, answered: object, expected: object) -> None:
        same(answered, expected)

    async def _ask(self, question: Question, patient: bool, plain: bool) -> None:
        wait_us = await self._hit(question, plain)
        if patient and wait_us:
            # `plain`, because a counted refusal would be charged.
            self.clock.advance(us=wait_us - 1)
            same(await self._hit(question, plain=True), 1)
            self.clock.advance(us=1)
            same(await self._hit(question, plain=True), 0)

    async def _hit(self, question: Question, plain: bool = False) -> int | None:
        """Hit the store and the reference, compare them, and return the retry-after in microseconds."""
        wait_us = await self._charge(self.store.hit, self.model.hit, question, plain)
        decision, _ = self.charged[-1]
        if decision.allowed:
            self.admitted.append((self.clock.now_us, decision))
            self.holding.append(decision)
            self._check_bound(decision)
        return wait_us

    def _check_bound(self, last: Decision) -> None:
        """Assert that no window that ends now holds more admitted units than its amount, whatever else is charged."""
        for bucket, key, _ in last.checks:
            for limit in bucket.limits:
                counting = self.holding  # a permit is held until it is refunded
                if not isinstance(limit, Concurrency):
                    since_us = _since_us(limit, self.clock.now_us)
                    counting = [decision for at_us, decision in self.admitted if at_us >= since_us]
                checks = [check for decision in counting for check in decision.checks]
                spent = sum(cost for limited, whose, cost in checks if (limited.name, whose) == (bucket.name, key))
                assert spent <= limit.amount, f"{spent} units of {key} are in one window of {limit}"

    async def _charge(self, ask: Asks, expect: Expects, question: Question, plain: bool = False) -> int | None:
        self.named.update((rule, key) for rule, key, _ in question)
        checks = self._checks(question, plain)
        expected, charged = expect(checks, self.clock.now_us)
        answer = ask(checks)
        decision = await settle(answer)
        if self.repeats and answer is decision and not decision.allowed:
            same_refusal(verdict_of(decision), expected)
        else:
            self._agree(verdict_of(decision), expected)
        self.charged.append((decision, charged))
        return expected.retry_after_us

    async def _refund(self, which: int, permits: bool | None) -> None:
        if self.charged:
            decision, charged = self.charged[-1 - which % len(self.charged)]
            has_permits = any(bucket.is_permit and cost for bucket, _, cost in decision.checks)
            if permits and decision.allowed and has_permits and released(self.store, decision):
                refunded = True
            else:
                refunded = await settle(self.store.refund(decision.begin_refund(permits=permits)))
            self._agree(refunded, self.model.refund(charged, self.clock.now_us, permits))
            same(await settle(self.store.refund(decision.begin_refund(permits=permits))), False)
            if refunded and permits is not False:
                self.holding = [other for other in self.holding if other is not decision]
            if refunded and not permits:
                others = [(at_us, other) for at_us, other in self.admitted if other is not decision]
                # After a reset, or beside a debt, units of the same moment belong to others.
                self.admitted = others if len(others) < len(self.admitted) else []

    async def _reset(self, key: str | None, rule: int | None = None) -> None:
        await self.look_after_all()  # both drop expired units
        names = [] if rule is None else ["another\udcff", self.buckets[rule].name]
        known = await settle(self.store.reset_all() if key is None else self.store.reset(key, names))
        had_units = self.model.reset(key, names)
        self.admitted.clear()
        self._agree(known, had_units)

    async def _step_back(self, span_us: int) -> None:
        # A store may drop expired units at any time while the clock advances. Touch every window before the clock
        # steps back, so that the store and the reference have dropped the same units.
        await self.look_after_all()
        self.clock.set(max(self.clock.now_us + span_us, 0))
        self.admitted.clear()
        await self.look_after_all()  # units ahead of now are moved back when their window is touched

    async def look_after_all(self) -> None:
        """Touch every window by a hit of cost 0."""
        for rule, key in sorted(self.named):
            await self._hit(((rule, key, 0),), plain=True)

    async def _check_expiry(self, key: str, limited: Bucket) -> None:
        """Assert that the first and the last units of each window leave when it says so, and not earlier."""
        start_us, shown = self.clock.now_us, await as_peek_says(self.store, key, limited)
        waits_us = {us for view in shown for us in (view.more_after_us, view.reset_after_us) if us}
        for span_us in sorted(wait_us - early_us for wait_us in waits_us for early_us in (1, 0)):
            self.clock.set(start_us + span_us)
            for view, now in zip(shown, await as_peek_says(self.store, key, limited), strict=True):
                if view.reset_after_us:
                    same(now.used < view.used, span_us >= view.more_after_us)
                    same(now.used == 0, span_us >= view.reset_after_us)

    def _change(self, move: Change) -> None:
        bucket = self.buckets[move.rule]
        if not move.in_place:
            changed = [*bucket.limits]
            changed[move.limit] = _of_amount(changed[move.limit], move.amount)
            self.buckets[move.rule] = Bucket(bucket.name, changed, count_denied=bucket.count_denied)
        else:
            bucket.limits[move.limit].become(move.amount)  # questions that were prepared follow

    def _checks(self, question: Question, plain: bool = False) -> list[Check]:
        buckets = [uncounted(bucket) for bucket in self.buckets] if plain else self.buckets
        return [(buckets[rule], key, cost) for rule, key, cost in question]


def _of_amount(limit: AnyLimit, amount: int) -> AnyLimit:
    if isinstance(limit, Limit):
        return Limit(amount, timedelta(microseconds=limit.window_us), resolution=limit.resolution)
    if isinstance(limit, Quota):
        return Quota(f"{amount}/{limit.unit}", zone=limit.zone_name, starts=limit.starts)
    return Concurrency(amount)


def _since_us(limit: AnyLimit, now_us: int) -> int:
    """Return when the window or the period of a limit begins that contains now."""
    if isinstance(limit, Limit):
        return now_us - limit.window_us + 1
    assert isinstance(limit, Quota)
    return limit.calendar.period_at(now_us).start_us


def _within(store: Store, limits: Sequence[AnyLimit]) -> Sequence[AnyLimit]:
    """Return limits that a store supports."""
    lacks = isinstance(limits[0], Concurrency) and not isinstance(store, CountsPermits)
    return (Limit(limits[0].amount, "1m"),) if lacks else limits


def permits_of(store: Store) -> int:
    """Return how many permits are taken; none where a store supports none."""
    return store.permits_held() if isinstance(store, CountsPermits) else 0


def released(store: Store, decision: Decision) -> bool:
    """Release the permits of a decision as a limiter does; return False if they have to be refunded instead."""
    return isinstance(store, MemoryStore) and store.release(decision)


@contextmanager
def shown_with(moves: Sequence[object], clock: Callable[[], int], rules: Sequence[object]) -> Iterator[None]:
    """Add the moves, the time and the rules to a failed assertion."""
    try:
        yield
    except AssertionError as error:
        played = "".join(f"\n  {move}" for move in moves)
        raise AssertionError(f"{error}\nat {clock()} us after{played}\nwith {rules}") from error


def same_refusal(repeated: Verdict, expected: Verdict) -> None:
    """Assert that a repeated refusal is still one, and that windows without room name the time until they have some."""
    same(repeated[:2], expected[:2])
    for answered, now in zip(repeated.answers, expected.answers, strict=True):
        if answered.retry_after_us not in (0, 1):  # 1: it has room meanwhile, and another one waits longer
            same(answered.retry_after_us, now.retry_after_us)


def same(answered: object, expected: object) -> None:
    """Assert that a result of the store equals that of the reference."""
    assert answered == expected, f"the store returned {answered}, the reference {expected}"
