"""The requests that a batcher sends: questions, and commands about the windows and permits of one key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.bans.ban import BanSubject, longest
from ...core.decision import Check, Decision, refused_by_ban
from ...core.errors import StoreUnavailable
from .ban_rows import BAN_FIELD, unless_foreign_row, unpack_bans, unpack_stored
from .script import BANNED, CHARGE, HIT, OK, UNSETTLED, decision_of, raise_failure

if TYPE_CHECKING:
    from .batch import Shared


class _Carried:
    """The state that a batcher keeps for a request.

    Args:
        future: Receives the result.

    Attributes:
        group: Requests of one group share a call to a cluster node: a slot, or the request itself; None if not set yet.
        redirections: How often a node has redirected the request.
    """

    __slots__ = ("future", "group", "redirections")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.group: object = None
        self.redirections = 0


class Command(_Carried):
    """A request about one key; no ban refuses it, and its result is dropped if it was cancelled.

    Args:
        future: Receives the result.
        name: A key in Redis that the request uses; all its keys are in the same cluster slot.
        pack: Returns the packed request. Its argument maps the names in the call to indexes; `pack` adds its own names.
        read: Returns the result, given the answer and the server's time in microseconds.
    """

    __slots__ = ("_read", "name", "pack")

    def __init__(
        self,
        future: asyncio.Future[Any],
        name: bytes,
        pack: Callable[[dict[bytes, int]], bytes],
        read: Callable[[bytes, int], Any],
    ) -> None:
        super().__init__(future)
        self.name = name
        self.pack = pack
        self._read = read

    def answered(self, answer: bytes, now_us: int, sent_us: int) -> Any:
        """Return the result for the task that awaits the request; an exception raised here is raised there.

        Args:
            answer: The answer of the script.
            now_us: The server's time, in microseconds.
            sent_us: When the call was sent, in microseconds of the monotonic clock.
        """
        raise_failure(answer)
        return self._read(answer, now_us)


class Question(_Carried):
    """A hit, a peek or a charge."""

    __slots__ = ("_changes", "_holds", "_shared", "_subjects", "banned", "checks", "what")

    def __init__(
        self,
        future: asyncio.Future[Decision],
        shared: Shared,
        what: int,
        checks: Sequence[Check],
        subjects: Sequence[BanSubject],
    ) -> None:
        super().__init__(future)
        self._shared = shared
        self.what = what
        self.checks = checks
        self._subjects = subjects
        # The keys whose bans the script reads.
        self.banned = () if what == CHARGE else tuple(keys_of(checks, subjects))
        self._changes = shared.refusals.changes
        self._holds = any(bucket.is_permit for bucket, _, _ in checks)

    @property
    def name(self) -> bytes | None:
        """See `Command`; None if the question has no keys."""
        key = self.checks[0][1] if self.checks else next((one for one in self._subjects if isinstance(one, str)), None)
        return None if key is None else self._shared.packing.name_of(key)

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Command`."""
        return self._shared.packing.question(self.what, self.checks, self.banned, names)

    def answered(self, answer: bytes, now_us: int, sent_us: int) -> Decision:
        """See `Command`."""
        if answer[0] == BANNED:
            return self._refused(answer[1:], now_us, sent_us)
        decision = decision_of(answer, self.what, self.checks, now_us)
        if self._holds and decision.reservations:
            self._shared.renewals.hold(decision)
        refusals = self._shared.refusals
        if self.what == HIT and (refusals.known or not decision.allowed):
            refusals.learn(decision, sent_us, self._changes, lasts=answer[0] != UNSETTLED)
        elif self.what == CHARGE:
            refusals.change(self.checks)
        return decision

    def _refused(self, packed: bytes, now_us: int, sent_us: int) -> Decision:
        """Return the refusal by the bans in an answer; see `answered`."""
        ban = longest(unless_foreign_row(unpack_bans, packed) or ())
        if ban is None:
            raise StoreUnavailable("redis: the ban of a key cannot be read", concerns="key")
        refusal = refused_by_ban(ban, now_us, self.checks)
        subjects = subjects_of(self.checks, self._subjects)
        self._shared.refusals.learn_ban(subjects, refusal, sent_us, self._changes)
        return refusal

    async def look_apart(self, ask_about: Callable[..., Awaitable[Any]]) -> bool:
        """Read the bans of this question in separate commands. If one refuses it, answer it and return True.

        Args:
            ask_about: Sends a command to the slot of a name.
        """
        names = [self._shared.packing.name_of(key) for key in self.banned]
        self.banned = ()
        rows = [await ask_about(name, b"HGET", name, BAN_FIELD) for name in names]
        now_us = self._shared.time.now_us()
        found = [ban for row in rows if (ban := unpack_stored(row)) is not None and not ban.is_over(now_us)]
        ban = longest(found)
        if ban is not None and not self.future.done():
            self.future.set_result(refused_by_ban(ban, now_us, self.checks))
        return ban is not None

    def missed(self, answer: bytes, now_us: int) -> None:
        """Release the permits of a cancelled request; units of windows stay charged."""
        if not self._holds or answer[0] != OK:
            return
        decision = decision_of(answer, self.what, self.checks, now_us)
        if decision.reservations:
            self._shared.renewals.hold(decision)
            self._shared.hand_back(decision.take_back(held=True))


Request: TypeAlias = Command | Question


def keys_of(checks: Sequence[Check], subjects: Sequence[BanSubject]) -> dict[str, None]:
    """Return the keys whose own bans refuse a question, without duplicates."""
    keys = dict.fromkeys([one for one in subjects if isinstance(one, str)])
    keys.update(dict.fromkeys([key for _, key, _ in checks]))
    return keys


def subjects_of(checks: Sequence[Check], subjects: Sequence[BanSubject]) -> tuple[BanSubject, ...]:
    """Return the keys and addresses whose bans refuse a question."""
    return *subjects, *(key for _, key, _ in checks)
