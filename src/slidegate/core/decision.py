"""The answer to one request, whole: nothing about it needs a second question.

A store makes a `Decision` on every request, so a decision holds the bare readings, and everything that people
read from it is worked out when they ask.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from math import lcm
from typing import Any, Final, NamedTuple, TypeAlias

from .bans.ban import Ban
from .concurrency import Concurrency
from .limits import AnyLimit, Limit
from .reservation import Reservation, reserved
from .ring import WindowState

_ENDLESS: Final = 2**62
"""Longer than any wait that ends. `NEVER` and `OPEN` are added to it, and the first of them is the longest of all."""


class Reason(StrEnum):
    """Why a request was let through or refused."""

    OK = "ok"
    """Every limit had room."""
    WAITED = "waited"
    """Let through after a wait for room."""
    LIMITED = "limited"
    """A limit had no room; `Decision.retry_after` says when it will."""
    TOO_LARGE = "too_large"
    """The cost is larger than a limit: it can never pass."""
    BANNED = "banned"
    """A ban is in force; `Decision.ban` says which."""
    BLOCKED = "blocked"
    """The client's address is on the blocklist, or a rule blocks the request; `Decision.by` says which."""
    NOBODY = "nobody"
    """The limits function of a rule says that nobody may pass; nothing was counted."""
    ALLOWLISTED = "allowlisted"
    """The client's address is on the allowlist; nothing was counted."""
    EXEMPT = "exempt"
    """No limit applies to this request; nothing was counted."""
    UNAVAILABLE = "unavailable"
    """The store did not answer, and `on_error` says "allow" or "deny"; nothing was counted."""


class LimitSet:
    """A rule as a store sees it: its name and its limits. It is made once, kept, and compared by identity.

    Args:
        rule: The rule that the windows belong to, 1 to 64 characters; two buckets of one rule share their windows.
        limits: The limits that apply together, no two with one window and resolution; or one `Concurrency` alone.
        names: The name of each limit on the wire; by default the rule, or ``rule-<seconds>`` where it has several.
        count_denied: Whether requests that are refused for lack of room are charged as well.
        wait_us: How long a request may wait for room here instead of being refused, in microseconds.
        wait_max: How many requests of one key may wait for room here at a time.
        unit: What is counted, where that is not requests: ``"tokens"``.
        label: The name of the rule in stats; by default `rule`.
        on_error: What decides about these limits when the store fails: "local", "allow" or "deny"; by default what the
            limiter was made with.
        fallback: Whether they stand for limits that a function returns for each request, and apply where it fails.
        tenant: Whose share of the permits a request takes, where waiting requests are let in fairly; None if they
            are let in as they came.
        source: The bucket that this one is made of, if it is.

    Attributes:
        source: The bucket in the code of which this one is made, step by step; itself if it is made of none.
        held: Whether a request holds what it is charged until it is handed back: a permit, and not units of a window.
        plain: Whether all its limits are windows that slide.
        uncounted: The same limits and windows where no refusal is charged.
    """

    __slots__ = (
        "_limits_now",
        "count_denied",
        "fallback",
        "held",
        "label",
        "limits",
        "names",
        "on_error",
        "plain",
        "rule",
        "source",
        "tenant",
        "uncounted",
        "unit",
        "wait_max",
        "wait_us",
    )

    def __init__(
        self,
        rule: str,
        limits: Sequence[AnyLimit],
        names: Sequence[str] | None = None,
        *,
        count_denied: bool = False,
        wait_us: int = 0,
        wait_max: int = 0,
        unit: str | None = None,
        label: str | None = None,
        on_error: str | None = None,
        fallback: bool = False,
        tenant: str | None = None,
        source: LimitSet | None = None,
    ) -> None:
        self.source: LimitSet = self if source is None else source
        self.rule = rule
        self.tenant = tenant
        self.on_error = on_error
        self.fallback = fallback
        self.unit = unit
        self.label = rule if label is None else label
        self.count_denied = count_denied
        self.wait_us = wait_us
        self.wait_max = wait_max
        self.limits = self._limits_now = tuple(limits)
        self.held = any(isinstance(limit, Concurrency) for limit in self.limits)
        self.plain = all(isinstance(limit, Limit) for limit in self.limits)
        self.names = tuple(names) if names is not None else wire_names(rule, self.limits)
        self.uncounted = self if not count_denied else self.under(rule, count_denied=False)

    def __getnewargs__(self) -> tuple[str, Sequence[AnyLimit]]:
        return self.rule, self.limits

    def under(
        self,
        rule: str,
        names: Sequence[str] | None = None,
        *,
        count_denied: bool | None = None,
        tenant: str | None = None,
        limits: Sequence[AnyLimit] | None = None,
    ) -> LimitSet:
        """Return the same limits with the windows of another rule; names on the wire, tenant and limits if given."""
        return LimitSet(
            rule,
            self.limits if limits is None else limits,
            self.names if names is None else names,
            count_denied=self.count_denied if count_denied is None else count_denied,
            wait_us=self.wait_us,
            wait_max=self.wait_max,
            unit=self.unit,
            label=self.label,
            on_error=self.on_error,
            fallback=self.fallback,
            tenant=self.tenant if tenant is None else tenant,
            source=self.source,
        )

    def change(self, limits: Sequence[AnyLimit]) -> LimitSet:
        """Return the same with other amounts, which hold from now on for whatever is made of the same source."""
        self.source._limits_now = tuple(limits)
        return self.in_force()

    def in_force(self) -> LimitSet:
        """Return the same with the amounts that hold by now; itself if these are its own."""
        limits = self.source._limits_now
        return self if self.limits == limits else self.under(self.rule, limits=limits)

    def __repr__(self) -> str:
        return f"<LimitSet {self.rule!r} {'; '.join(map(str, self.limits))}>"


def wire_names(rule: str, limits: Sequence[AnyLimit]) -> tuple[str, ...]:
    """Name each limit for the response headers: its own name, else its rule's, told apart by the window's seconds."""
    if len(limits) == 1:
        return (limits[0].name or rule,)
    names: list[str] = []
    for limit in limits:
        names.append(unique_name(limit.name or f"{rule}-{limit.suffix}", names))
    return tuple(names)


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or ``name-2``, ``name-3`` ... if it is taken."""
    count, unique = 1, name
    while unique in taken:
        count += 1
        unique = f"{name}-{count}"
    return unique


Check: TypeAlias = tuple[LimitSet, str, int]
"""One thing to charge: the bucket, the key (at most 64 bytes) and the cost in units (0 or more)."""


class LimitState(NamedTuple):
    """One limit's part in a decision. All spans are microseconds from `Decision.now_us`."""

    name: str
    rule: str
    key: str
    limit: AnyLimit
    remaining: int
    """Units left now, never below 0."""
    retry_after_us: int | None
    """How long this limit refuses the request's cost: 0 if it does not, None if for ever, or until a permit is handed
    back."""
    more_after_us: int
    """How long until the oldest spent unit leaves: 0 if nothing is spent, or if it is a place."""
    reset_after_us: int
    """How long until everything spent has left: 0 if nothing is spent, or if these are permits."""
    cost: int = 1
    """Units that the request asked for."""


class Decision:
    """One complete answer. True in a condition if the request may pass.

    Attributes:
        allowed: Whether the request may pass.
        reason: Why.
        now_us: The store's time at the decision, in microseconds.
        checks: The checks of the question: (bucket, key, cost) each.
        readings: The readings of the store, one for each limit of each check in turn; `states` says it in words.

    Args:
        reservations: What was charged; None if that was the cost of each check, to windows that slide alone.
    """

    __slots__ = ("_reservations", "allowed", "checks", "now_us", "readings", "reason")

    def __init__(
        self,
        allowed: bool,
        reason: Reason,
        now_us: int = 0,
        checks: Sequence[Check] = (),
        readings: Sequence[WindowState] = (),
        reservations: Sequence[Reservation] | None = (),
    ) -> None:
        self.allowed = allowed
        self.reason = reason
        self.now_us = now_us
        self.checks = checks
        self.readings = readings
        self._reservations = reservations

    def __bool__(self) -> bool:
        return self.allowed

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles read the same, and have nothing to hand back: what was charged is handed back once.
        return self.__class__, (self.allowed, self.reason, self.now_us, self.checks, self.readings)

    def __repr__(self) -> str:
        return (
            f"<Decision {self.reason} limit={self.limit} remaining={self.remaining} "
            f"retry_after_us={self.retry_after_us} reset_after_us={self.reset_after_us}>"
        )

    @property
    def ban(self) -> Ban | None:
        """The ban that refuses the request."""
        return None

    @property
    def by(self) -> str:
        """The refuser where no limit refuses: the maker of the ban, the name of the list, or the rule; else empty."""
        return ""

    @property
    def states(self) -> tuple[LimitState, ...]:
        """Every limit's part in the decision, in the order in which they were asked."""
        return tuple(self._state(*asked, reading) for asked, reading in zip(self._asked(), self.readings, strict=True))

    @property
    def binding(self) -> LimitState | None:
        """The limit with the longest wait, else the one that admits the fewest further requests, if any."""
        readings = self.readings
        if not readings:
            return None
        asked = self._asked()
        amounts = [bucket.limits[at].amount for bucket, _, _, at in asked]
        place = tightest_first(amounts, readings, unequal_costs(self.checks))[0]
        return self._state(*asked[place], readings[place])

    def _asked(self) -> list[tuple[LimitSet, str, int, int]]:
        """Return (bucket, key, cost, place of the limit in the bucket) of each reading."""
        return [(bucket, key, cost, at) for bucket, key, cost in self.checks for at in range(len(bucket.limits))]

    def _state(self, bucket: LimitSet, key: str, cost: int, at: int, reading: WindowState) -> LimitState:
        spent, leaves_us, newest_us, wait_us = reading
        limit = bucket.limits[at]
        return LimitState(
            bucket.names[at],
            bucket.rule,
            key,
            limit,
            remaining=max(limit.amount - spent, 0),
            retry_after_us=None if wait_us < 0 else wait_us,
            # The moments of permits are 0, because nobody knows them.
            more_after_us=max(leaves_us - self.now_us, 0) if spent else 0,
            reset_after_us=max(newest_us + limit.span_us - self.now_us, 0) if spent else 0,
            cost=cost,
        )

    @property
    def reservations(self) -> Sequence[Reservation]:
        """What is still charged, check by check, in their order; empty if nothing was."""
        if self._reservations is None:  # the newest units of each window are those of the question
            marks = [newest_us for _, _, newest_us, _ in self.readings]
            units = [cost for bucket, _, cost in self.checks for _ in bucket.limits]
            self._reservations = reserved(self.checks, self.now_us, marks, units)
        return self._reservations

    @reservations.setter
    def reservations(self, reservations: Sequence[Reservation]) -> None:
        self._reservations = reservations

    def take_back(
        self, index: int | None = None, units: int | None = None, *, held: bool | None = None
    ) -> list[Reservation]:
        """Take off what was charged, for `Store.refund`; the decision then reads as if it had not been charged.

        Args:
            index: The number of the check; by default all of them.
            units: How many units of each limit at most; by default all that are left.
            held: True for permits alone, False for units of windows alone.
        """
        taken: list[Reservation] = []
        for own in self.reservations:
            is_asked = index in (None, own.index) and held in (None, own.check[0].held)
            part = own.take(units) if is_asked else None
            if part is None:
                continue
            if not any(other.index == part.index for other in taken):
                self._uncount(part)
            taken.append(part)
        return taken

    def _uncount(self, part: Reservation) -> None:
        """Read as if the limits of a check had been charged fewer units."""
        first = sum(len(bucket.limits) for bucket, _, _ in self.checks[: part.index])
        readings = list(self.readings)
        for at, units in enumerate(part.units, first):
            spent, leaves_us, newest_us, wait_us = readings[at]
            readings[at] = spent - units, leaves_us, newest_us, wait_us
        self.readings = readings

    @property
    def limit(self) -> AnyLimit | None:
        """The binding limit."""
        state = self.binding
        return state.limit if state else None

    @property
    def remaining(self) -> int | None:
        """Units left under the binding limit; None if no limit was asked."""
        state = self.binding
        return state.remaining if state else None

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds until the same cost is admitted if nobody else spends: 0 if allowed, None if never or unknown.

        It is unknown where all permits of a concurrency limit are taken.
        """
        if self.allowed:
            return 0
        state = self.binding
        return state.retry_after_us if state else None

    @property
    def retry_after(self) -> int | None:
        """`retry_after_us` in whole seconds, rounded up, at least 1 for a refusal; None if never or unknown."""
        wait_us = self.retry_after_us
        return None if wait_us is None else ceil_s(wait_us)

    @property
    def more_after_us(self) -> int:
        """Microseconds until the oldest spent unit of the binding limit leaves."""
        state = self.binding
        return state.more_after_us if state else 0

    @property
    def more_after(self) -> int:
        """`more_after_us` in whole seconds, rounded up: `t` of the RateLimit field."""
        return ceil_s(self.more_after_us)

    @property
    def reset_after_us(self) -> int:
        """Microseconds until everything spent under the binding limit has left."""
        state = self.binding
        return state.reset_after_us if state else 0

    @property
    def reset_after(self) -> int:
        """`reset_after_us` in whole seconds, rounded up."""
        return ceil_s(self.reset_after_us)

    @property
    def violated(self) -> tuple[LimitState, ...]:
        """The limits that had no room at once."""
        return tuple(state for state in self.states if state.retry_after_us != 0)


def unequal_costs(checks: Sequence[Check]) -> Sequence[int]:
    """Return the cost under each limit, in the order of the readings; empty where all costs are the same.

    A cost of 0 counts as 1: such a request says its cost only afterwards, and no other number of requests is known.
    """
    first = checks[0][2]
    for _, _, cost in checks:
        if cost != first:
            return [max(cost, 1) for bucket, _, cost in checks for _ in bucket.limits]
    return ()


def tightest_first(amounts: Sequence[int], readings: Sequence[WindowState], costs: Sequence[int] = ()) -> list[int]:
    """Return the indexes of some readings, the limit that decides first.

    That is the limit with the longest wait, else the one that admits the fewest further requests of this cost; of
    several, the one that stays so for longest.

    Args:
        amounts: The amount of each limit.
        readings: The reading of each limit.
        costs: The cost under each limit, where they differ.
    """
    if len(readings) == 2 and not costs:
        (spent, leaves_us, _, wait_us), (other_spent, other_leaves_us, _, other_wait_us) = readings
        if wait_us == other_wait_us:  # as of every admitted request: no ranks to make and compare
            left, other_left = amounts[0] - spent, amounts[1] - other_spent
            is_first = left < other_left or (left == other_left and leaves_us >= other_leaves_us)
            return [0, 1] if is_first else [1, 0]
    ranks = [
        (-wait_us if wait_us >= 0 else -_ENDLESS - wait_us, amount - spent, -leaves_us)
        for amount, (spent, leaves_us, _, wait_us) in zip(amounts, readings, strict=True)
    ]
    if costs:
        # Units that are left are compared as numbers of requests; a common multiple of the costs keeps those whole.
        multiple = lcm(*costs)
        ranks = [(wait, left * multiple // cost, more) for (wait, left, more), cost in zip(ranks, costs, strict=True)]
    return sorted(range(len(ranks)), key=ranks.__getitem__)


def refused_later(readings: Sequence[WindowState], decided_us: int, now_us: int, checks: Sequence[Check]) -> Decision:
    """Return a refusal for lack of room as it reads at a later moment, as long as its windows are the same.

    Args:
        readings: The readings on which it was decided.
        decided_us: When that was.
        now_us: The later moment.
        checks: The question.
    """
    passed_us = now_us - decided_us
    later = [
        (spent, leaves_us, newest_us, wait_us and wait_us - passed_us)
        for spent, leaves_us, newest_us, wait_us in readings
    ]
    return Decision(False, Reason.LIMITED, now_us, checks, later)


def ceil_s(span_us: int) -> int:
    """Round microseconds up to whole seconds."""
    return -(-span_us // 1_000_000)


class StruckRefusal(Decision):
    """A refusal by a limit whose strike has banned the client: it is let in again when the ban has ended, too.

    Args:
        refused: The refusal by the limit.
        banned_us: How long the ban lasts from then on.
    """

    __slots__ = ("_banned_us",)

    def __init__(self, refused: Decision, banned_us: int) -> None:
        super().__init__(False, refused.reason, refused.now_us, refused.checks, refused.readings)
        self._banned_us = banned_us

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (
            Decision(False, self.reason, self.now_us, self.checks, self.readings),
            self._banned_us,
        )

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds until the limit has room and the ban has ended; None if the limit never has."""
        state = self.binding
        if state is None or self.reason is Reason.TOO_LARGE:
            return None
        return max(state.retry_after_us or 0, self._banned_us)


class BanRefusal(Decision):
    """A refusal of a client as such: by a ban, a list, or a rule for nobody. Nothing was counted.

    Args:
        by: See `Decision.by`.
        ban: The ban, if there is one.
        now_us: The store's time, in which the ban ends.
        checks: The checks of the question.
        reason: Why, where there is no ban.
    """

    __slots__ = ("_ban", "_by")

    def __init__(
        self,
        by: str,
        ban: Ban | None = None,
        now_us: int = 0,
        checks: Sequence[Check] = (),
        reason: Reason = Reason.BLOCKED,
    ) -> None:
        super().__init__(False, reason if ban is None else Reason.BANNED, now_us, checks)
        self._ban = ban
        self._by = by

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self._by, self._ban, self.now_us, self.checks, self.reason)

    def __repr__(self) -> str:
        return f"<Decision {self.reason} by={self.by!r} retry_after_us={self.retry_after_us}>"

    @property
    def ban(self) -> Ban | None:
        """The ban that refuses the request."""
        return self._ban

    @property
    def by(self) -> str:
        """The maker of the ban, a policy or a person; or the name of the list, or the rule."""
        return self._by

    @property
    def states(self) -> tuple[LimitState, ...]:
        """Nothing: no limit was asked."""
        return ()

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds until the ban ends; None for a permanent one and where there is none."""
        return None if self._ban is None else self._ban.left_us(self.now_us)


class RuleRefusal(BanRefusal):
    """A refusal by a rule that blocks. Nothing was counted.

    Args:
        rule: The name of the rule in stats.
        status: The status of the answer over HTTP, 400 to 599.
    """

    __slots__ = ("status",)

    def __init__(self, rule: str, status: int) -> None:
        super().__init__(rule)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self._by, self.status)
