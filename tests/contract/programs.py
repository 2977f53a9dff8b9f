"""Random programs of questions, times and changes of rules; `player` plays them to a store."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from hypothesis import strategies as st

from slidegate.core import AnyLimit, Concurrency, Limit, Quota, parse_limits
from slidegate.core.limits import MAX_AMOUNT

KEYS = ("ann", "ann\0", "\xff" * 32)
"""Any text of 64 bytes is a key, also one that begins as another does."""
MIN_WINDOW_US = 1_000
MAX_DRAWN_WINDOW_US = 120_000_000
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
    """Reset a key; all keys if it is None."""

    key: str | None


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
        drawn_us = MIN_WINDOW_US + self.below(MAX_DRAWN_WINDOW_US)
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
            return Reset(self.pick((*KEYS, None)))
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
    count_denied = tuple(
        choices.pick((False, False, True)) and not isinstance(limits[0], Concurrency) for limits in rules
    )
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


def _move(word: str, *given: str) -> Move:
    """Return a move of ``known.txt``: a word and numbers, or keys."""
    match word:
        case "ask" | "patient" | "look" | "charge":
            question = ((0, given[1] if given[1:] else "ann", int(given[0])),)
            asks: dict[str, Callable[..., Move]] = {"look": Look, "charge": Debt}
            return asks[word](question) if word in asks else Ask(question, patient=word == "patient")
        case "reset":
            return Reset(*given)
        case "amount":
            return Change(0, 0, int(given[0]))
    moves: dict[str, Callable[..., Move]] = {"align": Align, "refund": Refund, "step": Step}
    if word not in moves:
        others = "ask, patient, look, charge, reset, amount"
        raise LookupError(f"known.txt: expected a move of {others}, {', '.join(moves)}, not {word!r}")
    return moves[word](*map(int, given))


def _known() -> Iterator[tuple[str, Program]]:
    """Read ``known.txt``; "3x ask 1" are three moves."""
    for text in Path(__file__).with_name("known.txt").read_text("utf-8").split("\n\n")[1:]:
        name, limit, *lines = map(str.strip, text.splitlines())
        moves = list[Move]()
        for move in " ".join(lines).split(", "):
            times, _, words = move.rpartition("x ")
            moves += [_move(*words.split())] * int(times or 1)
        rule = parse_limits(Quota(limit.removeprefix("quota ")) if limit.startswith("quota ") else limit)
        yield name, Program(YEAR_2100_US, (rule,), (False,), moves)


KNOWN: Final = dict(_known())
"""Programs that once failed, by what they show."""
