"""A question: checks that are charged together or not at all, and the subjects whose bans refuse them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .bans.ban import BanSubject
from .buckets import Check


class Question(Sequence[Check]):
    """Checks to ask repeatedly, as `Store.prepare` makes them. Every store accepts it as a sequence of checks.

    Copies and pickles are plain tuples of checks.

    Args:
        checks: The checks, each of another window.
        subjects: Further keys and addresses whose bans refuse it.

    Attributes:
        checks: The checks, as a tuple.
        subjects: The argument.
        rendered: What the caller has computed from its checks; None until then. Stores do not read it.
        client: The client whose question it is, where the caller remembers it for one; else None. Stores do not read
            it.
    """

    __slots__ = ("checks", "client", "rendered", "subjects")

    def __init__(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> None:
        self.checks = tuple(checks)
        self.subjects = subjects
        self.rendered: Any = None
        self.client: Any = None

    def __getitem__(self, at: Any) -> Any:
        return self.checks[at]

    def __len__(self) -> int:
        return len(self.checks)

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __reduce__(self) -> tuple[type[tuple[Check, ...]], tuple[tuple[Check, ...]]]:
        return tuple, (self.checks,)
