"""The workers of a store: what each publishes of its rules, so that operators and their tools see what is enforced.

The text of the rules stands in the store under its digest: lines of JSON, the first of which is the head. Equal workers
have one text. With its own requests, and at most every ten seconds, or a second after the last time if it has met a new
limit, a worker writes 24 bytes that it lives, and the text if it is not there. While all are idle, what those have
published that wrote last stays known for a day::

    kind       number    worker     value
    rules      digest    0          {"version": 1}
                                    {"name": "api", "limit": "50/1m", ...}
                                    {"rule": "/health", "action": "exempt"}
    workers    0         worker     the time, the digest, and that of the secret

Fields are read by name: those that a later version adds are ignored, and of those that an earlier one leaves out the
defaults apply. The digest of a secret is that of a constant, keyed with it: it shows only whether two are equal.
Nothing here grows with the number of workers or rules in one step of an event loop.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from struct import Struct
from time import monotonic
from typing import Any, Final, NamedTuple

from ..core.errors import StoreError
from ..core.events import Event
from ..core.limits import AnyLimit
from ..core.logs import Throttle, logger
from ..core.memo import remember
from ..core.quotas import Quota
from ..core.store import COMMAND_DEADLINE_S, SharedRow
from ..core.stored import all_readable, json_of, read_by_name, readable
from .aio import let_others_run, yielding_to_others
from .named_limits import NamedLimit, parse_one, text_of_limit
from .rows import MAX_BYTES, NOBODY, Rows

RULES: Final = "rules"
"""The kind of the rows with the texts of rules."""
WORKERS: Final = "workers"
"""The kind of the rows of workers."""
VERSION: Final = 1
WRITE_EVERY_S: Final = 10.0
LIVES_US: Final = 60_000_000
"""A worker counts if it has written within this time before the one that wrote last."""
KEPT_US: Final = 86_400_000_000
TEXT_KEPT_US: Final = 7 * KEPT_US
AT_ONCE: Final = 25
"""How many rules are written or read in one step, at 10 to 80 us each."""
_LIFE: Final = Struct(">qqq")
"""When a worker has written, in Unix time; and the digests of the text of its rules, and of its secret."""
_WARN_EVERY_S: Final = 600.0
_MEMO: Final = 256
"""How many texts of other workers are remembered."""


class PublishedRule(NamedTuple):
    """One limit of a rule, or a rule without limits, as its worker has published it.

    The first fields are those by which rules are in order.

    Attributes:
        name: The name of the limit in header fields; empty without a limit.
        limit: The limit as configured in code, ``50/1m``; empty without one.
        zone: Of a quota the time zone of its periods; empty if these are those of its text, which are in UTC.
        starts: Of such a quota when a period starts.
        rule: The label of the rule.
        key: The kind of key that it reads: ``address``, ``everyone``, ``user``, ``header:X-API-Key``, several with
            ``+`` between them, or ``function``.
        action: ``limit``, ``block``, ``exempt``, ``honeypot``, ``ban`` for a policy of bans, ``blocklist`` or
            ``allowlist`` for some of its ranges, or ``client`` for how a middleware determines clients.
        shadow: Whether it reports and never refuses.
        by_function: Whether a function of the application's returns the limit, which is the fallback then.
        order: Its place among the rules of its middleware.
        middleware: The name of its middleware; ``calls of functions and blocks`` for those of `Limiter.limited`.
        number: Tells middlewares of one name apart that one worker has. Another worker may number them otherwise.
        bucket: The name of its windows in the store, as `Limiter.inspect` takes it.
        requests: Which requests it concerns: methods and paths as they were written, ``POST /login``, or the route;
            empty for all.
        conditional: Whether a condition decides if it concerns a request.
        final: Whether no later rule concerns its requests.
        at_endpoint: Whether it is a limit at an endpoint, of messages or of calls, from which no rule of the middleware
            exempts.
        cost: The units of a request.
        cost_by_function: Whether a function returns them.
        wait_us: How long a request may wait for room.
        ipv4_prefix: The prefix length of the networks that it counts or bans as one client.
        ipv6_prefix: The same for IPv6.
        leased: Whether workers may have units of it charged ahead, and admit requests with them.
        ranges: Of a list some ranges of addresses: ``4:cb007100-cb0071ff``, with the version in front.
        size: Of a list how many ranges it has; `ranges` are empty if they are too many to be published.
    """

    middleware: str = ""
    number: int = 0
    order: int = 0
    rule: str = ""
    name: str = ""
    limit: str = ""
    key: str = ""
    action: str = "limit"
    shadow: bool = False
    by_function: bool = False
    bucket: str = ""
    requests: str = ""
    conditional: bool = False
    final: bool = False
    at_endpoint: bool = False
    cost: int = 1
    cost_by_function: bool = False
    wait_us: int = 0
    ipv4_prefix: int = 32
    ipv6_prefix: int = 64
    leased: bool = False
    ranges: str = ""
    size: int = 0
    zone: str = ""
    starts: str = ""

    def named_limit(self) -> NamedLimit:
        """Return its limit, as texts describe it: a quota without its zone and start."""
        limit = parse_one(self.limit)
        return NamedLimit(self.name, limit, limit, changeable=not self.by_function)

    def counted_limit(self, changed: str = "") -> AnyLimit:
        """Return the limit with whose window it counts.

        Args:
            changed: The text of an override that it takes; empty without one.

        Raises:
            ConfigurationError: The time zone of a quota is not known here.
        """
        text = self.limit
        if changed:
            limit = self.named_limit()
            text = limit.with_amount(limit.amount_in(changed))
        if self.zone:
            return Quota(text, zone=self.zone, starts=self.starts)
        return parse_one(text)


_DEFAULTS: Final = PublishedRule._field_defaults


class Publication(NamedTuple):
    """What some equal workers have published.

    Attributes:
        workers: How many workers these are: those that wrote within a minute before the last one did.
        rules: Their rules, in order; none if `is_readable` is false.
        same_secret: Whether their digests of API keys and similar values are those of this limiter.
        is_readable: Whether the text of the rules was there, and this version can read it.
        seen_us: When the last one of all workers wrote, in microseconds of Unix time; 0 for this process.
    """

    workers: int
    rules: Sequence[PublishedRule]
    same_secret: bool = True
    is_readable: bool = True
    seen_us: int = 0


def rules_of(limits: Iterable[NamedLimit], **shared: Any) -> list[PublishedRule]:
    """Return what is published of the limits of one rule.

    Args:
        shared: Further fields, which all of them have.
    """
    rules = []
    for limit in limits:
        about = {**fields_of(limit.configured), "shadow": limit.shadow, **shared}
        rules.append(PublishedRule(name=limit.name, rule=limit.rule, by_function=not limit.changeable, **about))
    return rules


def fields_of(limit: AnyLimit) -> dict[str, Any]:
    """Return the fields that describe a limit: its text, and of a quota what this does not say of its periods."""
    text = text_of_limit(limit)
    if isinstance(limit, Quota) and limit.same_window != parse_one(text).same_window:
        return {"limit": text, "zone": limit.zone_name, "starts": limit.starts}
    return {"limit": text}


def _line_of(rule: PublishedRule) -> bytes:
    """Return the line of a rule; a field with its default value is left out."""
    fields = {name: value for name, value in rule._asdict().items() if value != _DEFAULTS[name]}
    return b"\n" + json_of(fields)


def _read_rule(line: bytes) -> PublishedRule:
    """Return the rule of a line; a later version may have written it in a way that this one cannot read."""
    rule = read_by_name(PublishedRule, _DEFAULTS | json.loads(line))
    for value, default in zip(rule, _DEFAULTS.values(), strict=True):
        if type(value) is not type(default):
            raise TypeError(value)
    if rule.limit:
        parse_one(rule.limit)
    return rule


def _version_in(head: bytes) -> object:
    """Return the version of a text."""
    return json.loads(head)["version"]


class Workers:
    """This worker among those of its store.

    Args:
        rules: Returns what this worker publishes; None if nothing uses its limiter, so that it is no worker.
        fingerprint: That of the limiter's secret.

    Attributes:
        pause_s: How long after it has written this worker writes again.
    """

    def __init__(
        self,
        rows: Rows,
        rules: Callable[[], Iterable[PublishedRule] | None],
        fingerprint: str,
        emit: Callable[[Event], None],
    ) -> None:
        self.pause_s = self._written_s = 0.0
        self._rows = rows
        self._rules = rules
        self._secret = _digest_of(fingerprint.encode())
        self._emit = emit
        self._written_by = NOBODY  # the worker that wrote last, which in a child of `fork` is that of the parent
        self._texts: dict[int, Sequence[PublishedRule]] = {}
        """The rules of texts, by their digests."""
        self._throttle = Throttle(_WARN_EVERY_S)

    # -- what this worker writes ---------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether this worker has to write."""
        if not self._rows.is_shared:
            return False
        # A child of `fork` is another worker, and writes at once.
        if self._written_by != self._rows.worker:
            return True
        return monotonic() >= self._written_s + self.pause_s

    async def write(self, deadline_s: float) -> None:
        """Publish the rules of this worker, and report if other workers have another secret.

        Args:
            deadline_s: The deadline of each step.

        Raises:
            StoreError: The store does not answer.
        """
        # If it fails, the next attempt is as late as after a success: a failing store is not asked more often.
        self._written_s = monotonic()
        self.pause_s = WRITE_EVERY_S
        self._written_by = self._rows.worker
        text = await self._text_of(await self._own_rules())
        digest = _digest_of(text)
        if not await self._rows.read(RULES, digest, digest, deadline_s):
            await self._rows.write(NOBODY, SharedRow(RULES, digest, text, TEXT_KEPT_US), deadline_s)
        row = SharedRow(WORKERS, 0, _LIFE.pack(self._rows.unix_us(), digest, self._secret), KEPT_US)
        await self._rows.write(self._rows.worker, row, deadline_s)
        await self._compare_secrets(deadline_s)

    async def _text_of(self, rules: Sequence[PublishedRule]) -> bytes:
        """Return the text of what this worker publishes, as much of it as a row can have."""
        text = bytearray(json_of({"version": VERSION}))
        async for rule in yielding_to_others(rules, AT_ONCE):
            line = _line_of(rule)
            if len(text) + len(line) > MAX_BYTES:
                if self._throttle.left_out("many", monotonic()) is not None:
                    logger.warning("other workers and tools do not see all of the %d rules and limits", len(rules))
                break
            text += line
        return bytes(text)

    async def _own_rules(self) -> Sequence[PublishedRule]:
        """Return the rules of this process, in an order that equal workers have in common."""
        return sorted({rule async for rule in yielding_to_others(self._rules() or (), AT_ONCE)})

    async def _compare_secrets(self, deadline_s: float) -> None:
        """Report if other workers have another secret, so that their digests of clients differ."""
        living, _ = await self._living(deadline_s)
        differing = sum([count for (_, secret), count in living.items() if secret != self._secret])
        if differing and self._throttle.left_out("secret", monotonic()) is not None:
            message = (
                f"{differing} of {living.total()} other workers on this store have another secret, so their digests of "
                "API keys and similar values differ; set the same SLIDEGATE_SECRET, or secret=, for all"
            )
            self._emit(Event("secret_differs", message, {"workers": differing}))

    async def end(self, deadline_s: float) -> None:
        """Delete the row of this worker, if it has written one; if the store does not answer, it expires."""
        worker, self._written_by = self._written_by, NOBODY
        if worker == self._rows.worker:
            with suppress(StoreError):
                await self._rows.write(worker, SharedRow(WORKERS, 0, b"", 0), deadline_s)

    # -- what all have published ---------------------------------------------------------------------------------------

    async def all(self) -> list[Publication]:
        """Return what all workers publish, once for equal ones: those that are equal to this process come first.

        Raises:
            StoreError: The store does not answer.
        """
        living, seen_us = await self._living(COMMAND_DEADLINE_S)
        publications: list[Publication] = []
        if self._rules() is not None:
            rules = await self._own_rules()
            equals = living.pop((_digest_of(await self._text_of(rules)), self._secret), 0)
            publications.append(Publication(1 + equals, rules))
        for (digest, secret), count in sorted(living.items()):
            published = await self._rules_of(digest)
            is_same = secret == self._secret
            publications.append(Publication(count, published or (), is_same, published is not None, seen_us))
            await let_others_run()
        return publications

    async def _living(self, deadline_s: float) -> tuple[Counter[tuple[int, ...]], int]:
        """Return the digests that other workers have written, how many have each, and when one of all last wrote."""
        lives: dict[bytes, tuple[int, ...]] = {}
        for row in await self._rows.read(WORKERS, 0, 0, deadline_s):
            life = readable(_LIFE.unpack_from, row.value)
            if life is not None and 0 <= life[1] < 2**62:  # else no text has this digest
                lives[row.worker] = life
        seen_us, *_ = max(lives.values(), default=(0,))
        lives.pop(self._rows.worker, None)
        return Counter([life[1:] for life in lives.values() if seen_us - life[0] < LIVES_US]), seen_us

    async def _rules_of(self, digest: int) -> Sequence[PublishedRule] | None:
        """Return the rules of a text; None if it is gone, and will be written again, or is of a later version.

        Lines that this version cannot read are left out.
        """
        if digest in self._texts:
            return self._texts[digest]
        rows = await self._rows.read(RULES, digest, digest)
        if not rows:
            return None
        head, *lines = rows[0].value.split(b"\n")
        if readable(_version_in, head) != VERSION:
            return None
        rules: list[PublishedRule] = []
        async for line in yielding_to_others(lines, AT_ONCE):
            rules += all_readable(_read_rule, [line])
        return remember(self._texts, digest, tuple(rules), _MEMO)


def _digest_of(text: bytes) -> int:
    """Return the number of the row with a text: a digest of 62 bits, the most that one has."""
    return int.from_bytes(blake2b(text, digest_size=8).digest()) >> 2
