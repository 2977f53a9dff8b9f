"""The workers of a store: what this one writes of itself, and what all have published; see `published`.

With its own requests, and at most every ten seconds, a worker writes 16 bytes that it lives. Its rules it writes when
they have changed or their text is gone: a text is kept for a day, and the worker looks each time whether it is there.
Nothing here grows with the number of workers or rules in one step of an event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from time import monotonic
from typing import Final

from ..core.errors import StoreError
from ..core.events import Event
from ..core.logs import Throttle, logger
from ..core.memo import remember
from ..core.store import COMMAND_DEADLINE_S, Clock, SharedRow
from .aio import let_others_run, yielding_to_others
from .callers import Callers
from .published import (
    LIFE,
    MOST_RULES,
    NAMES,
    NO_RULES,
    PART,
    Head,
    Publication,
    PublishedRule,
    PublishedRules,
    digest_of,
    head_in,
    head_of,
    part_of,
    rules_in,
)
from .rows import NOBODY, Rows

RULES: Final = "rules"
"""The kind of the rows with the texts of rules."""
WORKERS: Final = "workers"
"""The kind of the rows of workers."""
WRITE_EVERY_S: Final = 10.0
KEPT_US: Final = 60_000_000
"""How long a worker counts as living after it has written."""
TEXT_KEPT_US: Final = 86_400_000_000
_WARN_EVERY_S: Final = 600.0
_IN_ORDER: Final = attrgetter("middleware", "order", "rule", "name", *NAMES)
"""All fields of a rule, so that the order is the same in equal workers."""
_MEMO: Final = 256
"""How many texts of other workers are remembered."""


class Workers:
    """This worker among those of its store.

    Args:
        rows: The rows of the store.
        callers: What uses the limiter in this process, and so what this worker publishes.
        fingerprint: That of the limiter's secret.
        unix_us: Returns Unix time in microseconds.
        emit: Emits an event.

    Attributes:
        due_s: When this worker writes next (monotonic); 0 for with the next request.
    """

    def __init__(
        self, rows: Rows, callers: Callers, fingerprint: str, unix_us: Clock, emit: Callable[[Event], None]
    ) -> None:
        self.due_s = 0.0
        self._rows = rows
        self._callers = callers
        self._fingerprint = fingerprint
        self._unix_us = unix_us
        self._emit = emit
        self._written_by = NOBODY
        self._fingerprints: dict[int, str] = {}
        self._texts: dict[int, PublishedRules] = {}
        self._throttle = Throttle(_WARN_EVERY_S)

    # -- what this worker writes ---------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether this worker has to write."""
        if not self._rows.is_shared:
            return False
        # A child of `fork` is another worker, and writes at once.
        if self._written_by != self._rows.worker:
            return True
        return monotonic() >= self.due_s

    async def write(self, deadline_s: float) -> None:
        """Write what this worker has to say, and report if other workers have another secret.

        Args:
            deadline_s: The deadline of each step.

        Raises:
            StoreError: The store does not answer.
        """
        # If it fails, it is tried again as late as after a success: a sick store is not asked more often.
        self.due_s = monotonic() + WRITE_EVERY_S
        self._written_by = self._rows.worker
        head, parts = await self._text()
        digest = digest_of(head, parts)
        if not await self._rows.read(RULES, digest, digest, deadline_s):
            # The head comes last, and expires first: who finds it finds the parts.
            for number, part in enumerate(parts, start=1):
                kept_us = TEXT_KEPT_US + KEPT_US
                await self._rows.write(NOBODY, SharedRow(RULES, digest + number, part, kept_us), deadline_s)
            await self._rows.write(NOBODY, SharedRow(RULES, digest, head, TEXT_KEPT_US), deadline_s)
        self._fingerprints[digest] = self._fingerprint
        row = SharedRow(WORKERS, 0, LIFE.pack(digest, self._unix_us()), KEPT_US)
        await self._rows.write(self._rows.worker, row, deadline_s)
        await self._compare_secrets(deadline_s)

    async def _text(self) -> tuple[bytes, list[bytes]]:
        """Return the head and the parts of what this worker publishes."""
        parts = []
        rules = iter(await self._own_rules())
        while part := [*islice(rules, PART)]:
            parts.append(part_of(part))
            await let_others_run()
        return head_of(self._fingerprint, len(parts)), parts

    async def _own_rules(self) -> list[PublishedRule]:
        """Return the rules of this process, in an order that equal workers have in common."""
        rules: set[PublishedRule] = set()
        async for rule in yielding_to_others(self._published(), PART):
            rules.add(rule)
        if len(rules) > MOST_RULES and self._throttle.left_out("many", monotonic()) is not None:
            logger.warning("of %d rules and limits, other workers and tools see the first %d", len(rules), MOST_RULES)
        return sorted(rules, key=_IN_ORDER)[:MOST_RULES]

    def _published(self) -> Iterator[PublishedRule]:
        for caller in self._callers.all():
            yield from caller.published()

    async def _compare_secrets(self, deadline_s: float) -> None:
        """Report if other workers have another secret: they know clients by other digests."""
        living = await self._living(deadline_s)
        differing = 0
        for digest, count in living.items():
            fingerprint = await self._fingerprint_of(digest, deadline_s)
            if fingerprint not in (None, self._fingerprint):
                differing += count
        if differing and self._throttle.left_out("secret", monotonic()) is not None:
            message = (
                f"{differing} of {living.total()} other workers on this store have another secret, so their digests of "
                "API keys and similar values differ; set the same SLIDEGATE_SECRET, or secret=, for all"
            )
            self._emit(Event("secret_differs", message, {"workers": differing}))

    async def _fingerprint_of(self, digest: int, deadline_s: float) -> str | None:
        """Return the fingerprint of the secret of a text; None if it is gone, or of a later version."""
        remembered = self._fingerprints.get(digest)
        if remembered is not None:
            return remembered
        head = await self._head(digest, deadline_s)
        if head is None:  # and not remembered: its worker will write it again
            return None
        return remember(self._fingerprints, digest, head.fingerprint, _MEMO)

    async def _head(self, digest: int, deadline_s: float = COMMAND_DEADLINE_S) -> Head | None:
        """Return the head of a text; None if it is gone, and will be written again, or is of a later version."""
        heads = await self._rows.read(RULES, digest, digest, deadline_s)
        if not heads:
            return None
        try:
            return head_in(heads[0].value)
        except ValueError:
            return None

    async def end(self, deadline_s: float) -> None:
        """Delete the row of this worker, if it has written one; if the store does not answer, it expires."""
        worker, self._written_by = self._written_by, NOBODY
        if worker == self._rows.worker:
            with suppress(StoreError):
                await self._rows.write(worker, SharedRow(WORKERS, 0, b"", 0), deadline_s)

    # -- what all have published ---------------------------------------------------------------------------------------

    async def others(self) -> list[Publication]:
        """Return what the other workers have published within a minute, once for equal ones.

        Raises:
            StoreError: The store does not answer.
        """
        found = []
        for digest, count in sorted((await self._living(COMMAND_DEADLINE_S)).items()):
            found.append(await self._publication(digest, count))
            await let_others_run()
        return found

    async def all(self) -> list[Publication]:
        """Return what all workers publish, once for equal ones: those that are equal to this process come first.

        Raises:
            StoreError: The store does not answer.
        """
        found = await self.others()
        if not self._callers.all():
            return found
        own = PublishedRules(await self._own_rules())
        workers, differing = 1, []
        for one in found:
            if one.is_readable and one.same_secret and one.text.rules == own.rules:
                workers += one.workers
            else:
                differing.append(one)
        return [Publication(workers, own), *differing]

    async def _living(self, deadline_s: float) -> Counter[int]:
        """Return the digests of what other workers have published, and how many workers each has."""
        found: Counter[int] = Counter()
        for row in await self._rows.read(WORKERS, 0, 0, deadline_s):
            if row.worker != self._rows.worker and len(row.value) >= LIFE.size:
                found[LIFE.unpack_from(row.value)[0]] += 1
        return found

    async def _publication(self, digest: int, count: int) -> Publication:
        """Return what some workers have published.

        Args:
            digest: The digest of their text.
            count: How many workers these are.
        """
        head = await self._head(digest)
        if head is None:
            return Publication(count, NO_RULES, is_readable=False)
        fingerprint, parts = head
        text = self._texts.get(digest)
        if text is None:
            text = await self._read_text(digest, parts)
        if text is None:
            return Publication(count, NO_RULES, is_readable=False)
        remember(self._texts, digest, text, _MEMO)
        return Publication(count, text, same_secret=fingerprint == self._fingerprint)

    async def _read_text(self, digest: int, parts: int) -> PublishedRules | None:
        """Return the rules of a text, read part by part; None if a part is gone."""
        rules: list[PublishedRule] = []
        for number in range(digest + 1, digest + 1 + parts):
            rows = await self._rows.read(RULES, number, number)
            if not rows:
                return None
            rules += rules_in(rows[0].value)
            await let_others_run()
        return PublishedRules(rules)
