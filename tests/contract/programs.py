"""Random programs of questions, times and changes of rules; `player` plays them to a store."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias, TypeVar

from hypothesis import strategies as st

from slidegate.core import AnyLimit, Concurrency, Limit, Quota, parse_limits
from slidegate.core.limits import MAX_AMOUNT

KEYS = ("ann", "ann\0", "\xff" * 32)
"""Any text of 64 bytes is a key, also one that begins as another does."""
SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
YEAR_2100_US = 4_102_444_800_000_000
SUMMER_TIME_US = YEAR_2100_US + 449 * DAY_US + 20 * HOUR_US
"""A few hours before daylight saving time begins in Berlin, on 27 March 2101."""

Choice = TypeVar("Choice")
Question: TypeAlias = tuple[tuple[int, str, int], ...]
"""Several (rule, key, cost)."""


class Ask(NamedTuple):
    """Hit with a question.

    `patient`: after a refusal, wait for its retry-after and hit again. `plain`: as if no rule counted refusals.
    """

    question: Question
    patient: bool
    plain: bool = False


class Look(NamedTuple):
    """Peek with a question."""

    question: Question


class Debt(NamedTuple):
    """Charge a question, regardless of the limits."""

    question: Question


class Refund(NamedTuple):
    """Refund an earlier charge, twice; or its `permits` alone, or all but these."""

    which: int
    permits: bool | None = None


class Reset(NamedTuple):
    """Reset a key under one rule or under all; all keys if it is None."""

    key: str | None
    rule: int | None = None


class Step(NamedTuple):
    """Advance the clock; a negative span steps it back."""

    span_us: int


class Align(NamedTuple):
    """Advance the clock to `offset_us` after the next multiple of `slice_us`."""

    slice_us: int
    offset_us: int


class Change(NamedTuple):
    """Change the amount of one limit of a rule: in a new bucket, or `in_place`, as an operator does."""

    rule: int
    limit: int
    amount: int
    in_place: bool = False


Move: TypeAlias = Ask | Look | Debt | Refund | Reset | Step | Align | Change


class Program(NamedTuple):
    """The start time, the rules and whether each counts refusals, and the moves."""

    start_us: int
    rules: tuple[tuple[AnyLimit, ...], ...]
    count_denied: tuple[bool, ...]
    moves: list[Move]


class Choices:
    """Turns drawn bytes into choices; shrinking prefers choices that are earlier in their list.

    Hypothesis draws bytes a hundred times faster than a program choice by choice, and shrinks them equally well. When
    the bytes are used up, every choice is the first of its list.
    """

    def __init__(self, rolled: bytes) -> None:
        self._rolled = rolled

    def __bool__(self) -> bool:
        return bool(self._rolled)

    def below(self, end: int) -> int:
        """Choose a number from 0 to `end` - 1."""
        size = (end.bit_length() + 7) // 8
        taken, self._rolled = self._rolled[:size], self._rolled[size:]
        return int.from_bytes(taken, "big") % end

    def pick(self, choices: Sequence[Choice]) -> Choice:
        """Choose an element of a sequence."""
        return choices[self.below(len(choices))]

    def amount(self, resolution: int) -> int:
        """Choose an amount: close to the resolution, where the kind of ring changes, or far from it."""
        near = max(1, resolution - 2 + self.below(6))
        return self.pick((1 + self.below(6), near, near, 1 + self.below(300), 1 + self.below(10**6), MAX_AMOUNT))

    def limit(self) -> Limit:
        """Choose a limit with a resolution from 1 to 128, and a window that slices divide evenly or not."""
        drawn_us = 1_000 + self.below(120 * SECOND_US)
        window_us = self.pick((1_000, 1_001, 99_999, 10_000_000, 60_000_000, drawn_us))
        highest = min(128, window_us // 10)
        resolution = 1 + self.below(self.pick((3, 10, highest, highest)))
        return Limit(self.amount(resolution), timedelta(microseconds=window_us), resolution=resolution)

    def quota(self) -> Quota:
        """Choose a quota, with periods of several lengths and time zones."""
        amount = 1 + self.below(12)
        return self.pick(
            (
                Quota(f"{amount}/day", zone="Europe/Berlin"),
                Quota(f"{amount}/day", zone="America/New_York", starts="06:30"),
                Quota(f"{amount}/week", starts="sunday"),
                Quota(f"{amount}/month", starts=31),
            )
        )

    def rule(self) -> tuple[AnyLimit, ...]:
        """Choose permits, or one to three limits of different windows, of which each sixth is a quota."""
        if self.below(4) == 1:
            return (Concurrency(self.pick((1, 2, 3, 40))),)
        drawn = [self.quota() if not self.below(6) else self.limit() for _ in range(self.pick((1, 1, 2, 3)))]
        return tuple({limit.same_window: limit for limit in drawn}.values())

    def cost(self, limits: Sequence[AnyLimit]) -> int:
        """Choose a cost: small, zero, a part of a limit, all of it, or too large."""
        amount = self.pick([limit.amount for limit in limits])
        least = min(limit.amount for limit in limits)
        part = least // (2 + self.below(6)) + 1
        return self.pick((1, 1, 1, 0, 2, part, part, self.below(least) + 1, amount, amount + self.below(2)))

    def span_us(self, limits: Sequence[AnyLimit]) -> int:
        """Choose a span of time, often close to one after which a unit expires."""
        slice_us, window_us = lengths_us(self.pick(limits))
        whole_us = -(-window_us // slice_us) * slice_us
        marks_us = (slice_us, window_us, whole_us, whole_us + slice_us)
        mark_us = self.pick(marks_us) + self.pick((0, 1, -1))
        within_us = self.below(window_us // (1 + self.below(8)) + 1)
        return self.pick((within_us, mark_us, self.below(4 * slice_us), self.below(50), self.below(3 * window_us)))

    def question(self, rules: Sequence[Sequence[AnyLimit]]) -> Question:
        """Choose a question: up to three distinct pairs of rule and key, with costs."""
        targets = [(self.below(len(rules)), self.pick(KEYS)) for _ in range(self.pick((1, 1, 1, 2, 3)))]
        return tuple((rule, key, self.cost(rules[rule])) for rule, key in dict.fromkeys(targets))

    def move(self, rules: Sequence[Sequence[AnyLimit]]) -> Move | None:
        """Choose the next move, mostly requests and steps of the clock."""
        known = [limit for limits in rules for limit in limits]
        kind = self.below(32)
        if kind == 0:
            return None  # shrinking turns bytes to 0, which makes the program shorter
        if kind < 16:
            return Ask(self.question(rules), patient=kind % 4 == 3, plain=kind % 4 == 2)
        if kind < 20:
            return Step(self.span_us(known))
        if kind < 23:
            return Align(lengths_us(self.pick(known))[0], self.pick((0, 1, -1)))
        if kind < 25:
            return Look(self.question(rules))
        if kind == 25:
            drawn = self.question(rules)
            return Debt(tuple((rule, key, cost << self.pick((0, 0, 1, 50))) for rule, key, cost in drawn))
        if kind < 28:
            return Refund(self.below(4), self.pick((None, None, True, False)))
        if kind == 28:
            return Reset(self.pick((*KEYS, None)), self.pick((None, *range(len(rules)))))
        if kind == 29:
            return Step(-self.span_us(known))
        rule = self.below(len(rules))
        number = self.below(len(rules[rule]))
        return Change(rule, number, self.amount(rules[rule][number].resolution), in_place=self.pick((False, True)))


def lengths_us(limit: AnyLimit) -> tuple[int, int]:
    """Return the lengths of a slice and of the window; for others, spans after which the period of a quota may end."""
    return (limit.slice_us, limit.window_us) if isinstance(limit, Limit) else (HOUR_US, DAY_US)


def program(choices: Choices) -> Program:
    """Return a program: rules, a start time, and moves until the choices are used up."""
    rules = tuple(choices.rule() for _ in range(choices.pick((1, 1, 2, 3))))
    count_denied = tuple(choices.pick((False, False, True)) and not isinstance(rule[0], Concurrency) for rule in rules)
    counts_periods = any(isinstance(limit, Quota) for limits in rules for limit in limits)  # by Unix time
    early = () if counts_periods else (0, choices.below(10**9))
    start_us = choices.pick((*early, YEAR_2100_US, SUMMER_TIME_US))
    moves = []
    while choices:
        move = choices.move(rules)
        if move is not None:
            moves.append(move)
    return Program(start_us, rules, count_denied, moves)


def drawn(fewest: int, most: int) -> st.SearchStrategy[Choices]:
    """Draw choices of at most 60 bytes, or of `fewest` to `most` bytes."""
    return st.one_of(st.binary(max_size=60), st.binary(min_size=fewest, max_size=most)).map(Choices)


def programs() -> st.SearchStrategy[Program]:
    """Draw programs: some short, most of 20 to 80 moves."""
    return drawn(200, 800).map(program)


def _ask(*costs: int, key: str = "ann") -> list[Move]:
    return [Ask(((0, key, cost),), patient=False) for cost in costs]


def _of(cost: int) -> Question:
    return ((0, "ann", cost),)


def _known(limit: str | Quota, *moves: Move | list[Move]) -> Program:
    played = [move for each in moves for move in (each if isinstance(each, list) else [each])]
    return Program(YEAR_2100_US, (parse_limits(limit),), (False,), played)


def _of_refusals(amount: int) -> Program:
    """Return a program of a full window, whose refusals are known."""
    more, less, one = Change(0, 0, amount + 2), Change(0, 0, amount), _ask(1)
    full = _ask(*[1] * (amount - 1), 2, 2, 1, 1, 1)
    changes = [*full, Refund(2), *_ask(1, 1, 1), more, *one, less, *_ask(1, 1), more, *_ask(1, 1), Reset("ann"), *one]
    return _known(f"{amount}/day @9", changes)


def _of_a_reset(before: int, after: int, left_us: int) -> Program:
    """Return a program in which a reset finds the last unit after the amount has changed, and not after its end."""
    finds = [Align(3_333_334, 0), *_ask(0), Change(0, 0, after), *_ask(1), Step(left_us - 1), Reset("ann")]
    return _known(f"{before}/10s @3", finds, _ask(1), Step(left_us), Reset("ann"))


KNOWN: Final = {
    "quotas: a charge of the period before is not refunded": _known(
        Quota("9/day"), _ask(2), Step(DAY_US), _ask(3), Refund(1), _ask(1)
    ),
    "quotas: a clock that is set back goes on counting in the newer period": _known(
        Quota("2/day"), Align(DAY_US, SECOND_US), _ask(1), Step(-10 * SECOND_US), _ask(1), Ask(_of(1), patient=True)
    ),
    "a charge after a reset is refunded also under a changed amount": _known(
        "1/10s @2",
        *(_ask(1, key="bob"), Change(0, 0, 100), _ask(1), Step(SECOND_US), Reset("ann")),
        *(_ask(2, 1), Refund(1), _ask(1)),
    ),
    "a look before the clock steps back changes no refund": _known(
        "1/10s", Look(_of(1)), Step(-10 * SECOND_US), _ask(1), Refund(0)
    ),
    "a refusal from before a step back of the clock is not repeated": _known(
        "1/10s", _ask(1, 1), Step(-1), Step(1), _ask(1)
    ),
    "a reset finds the last unit after the amount 1 has become 100": _of_a_reset(1, 100, 13_333_336),
    "a reset finds the last unit after the amount 100 has become 1": _of_a_reset(100, 1, 10_000_000),
    "a refund takes what is left of a charge after a reset": _known(
        "100/minute @10", Align(6_000_000, 0), _ask(3), Reset("ann"), _ask(2), Refund(1), _ask(1)
    ),
    "a refund empties the newest slice after the oldest has expired": _known(
        "20/minute @10",
        *(_ask(1), Step(30_000_000), _ask(1), Step(30_000_000), _ask(1), Step(6_000_000)),
        *(Refund(0), Look(_of(0))),
    ),
    "under a lowered amount a cost of 0 waits for the units of two slices": _known(
        "100/minute @10",
        *(Change(0, 0, 99), _ask(0), Change(0, 0, 100), _ask(1), Step(6_000_000), _ask(1)),
        *(Step(6_000_000), _ask(98), Step(6_000_000), _ask(1), Change(0, 0, 99), _ask(0)),
    ),
    "a known refusal ends when a window of 6 changes": _of_refusals(6),
    "a known refusal ends when a window of 60 changes": _of_refusals(60),
    "a known refusal ends when less is left": _known("5/hour", _ask(3, 4, 2, 4)),
    "a known refusal ends when something is charged": _known("5/hour", _ask(3, 4), Debt(_of(2)), _ask(4)),
    "the most units that a window counts leave with it": _known(
        "5/hour", Debt(_of(2**32)), Step(2 * HOUR_US), Debt(_of(3)), _ask(2, 1)
    ),
}
"""Programs that once failed, by what they show."""
