"""Limits on functions and blocks of code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from copy import copy
from datetime import timedelta
from functools import cached_property, wraps
from hashlib import blake2b
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast

from ..core.arguments import MAX_NAME, check_name
from ..core.buckets import Bucket
from ..core.decision import Decision, Reason
from ..core.durations import parse_duration_us
from ..core.exceeded import RateLimitExceeded
from ..core.limit_texts import parse_limits
from ..core.limits import check_within
from ..core.memo import remember
from .aio import answer_of, to_the_end
from .callers import BucketCaller
from .engine import Engine
from .keys import Limits
from .queues import room_in_us

P = ParamSpec("P")
R = TypeVar("R")

LimitedKey: TypeAlias = str | Callable[..., str]
"""A key, or a function of a call's arguments that returns it."""

DEFAULT_RULE: Final = "limited"
MAX_WAITING: Final = 10_000
"""The most calls of one key that may wait at the same time."""
_STATUSES: Final = {Reason.BANNED: 403, Reason.UNAVAILABLE: 503}
"""The statuses with which middlewares answer refusals that are not by a limit."""
_SAME_PAUSE_US: Final = 100_000
"""By how much two requests for one pause differ at most: concurrent responses come a moment apart."""
MAX_BLOCKS: Final = 256
"""How many different limits of blocks are remembered."""
_NOT_IN_RULES: Final = re.compile("[^!-~]|[:;]")
"""What the name of a function may contain and that of a rule may not."""


class Limited:
    """Limits calls: a decorator of functions, or ``async with`` and ``with`` around a block of code.

    Created by `Limiter.limited`, which documents the arguments. An object may be used many times, also concurrently.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        key: LimitedKey,
        cost: int,
        wait: str | timedelta | None,
        rule: str | None,
    ) -> None:
        self._engine = engine
        self._limits = parse_limits(limits)
        self._key: Any = key
        self._cost = check_within(cost, self._limits, "limited: cost")
        self._wait_us = 0
        if wait is not None:
            self._wait_us = parse_duration_us(wait, "wait")
        if rule is not None:
            check_name(rule, "rule")
        self._rule = rule

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a limited function with the same signature."""
        caller = self._caller(_name_of(function))  # the function below refers to it, so that it exists as long
        if not inspect.iscoroutinefunction(function):

            @wraps(function)
            def limited(*args: P.args, **options: P.kwargs) -> R:
                self._admit_here(caller.bucket, self._key_of(args, options))
                return function(*args, **options)

            return limited
        awaited = cast("Callable[P, Awaitable[Any]]", function)

        @wraps(function)
        async def limited_async(*args: P.args, **options: P.kwargs) -> Any:
            await self._admit(caller.bucket, self._key_of(args, options))
            return await awaited(*args, **options)

        return cast("Callable[P, R]", limited_async)

    async def __aenter__(self) -> Decision:
        return await self._admit(self._block.bucket, self._key)

    async def __aexit__(self, *error: object) -> None:
        """Do nothing: what the block spent stays spent."""

    def __enter__(self) -> Decision:
        return self._admit_here(self._block.bucket, self._key)

    def __exit__(self, *error: object) -> None:
        """Do nothing: what the block spent stays spent."""

    async def pause(self, pause_us: int, reason: str) -> None:
        """Ban the key of a block, because the service that it calls asks for a pause.

        That is a part of a request: it has the deadline of one, and `on_error` decides if the store fails. A longer ban
        is never shortened, least of all a permanent one; and the same pause is not set twice.
        """
        key, _ = self._engine.keys.normalize(self._key)
        checks = ((self._block.bucket, key, self._cost),)
        decision = await answer_of(self._engine.peek(checks, ()))
        left_us: int | None = 0
        if decision.reason is Reason.BANNED:
            left_us = decision.retry_after_us
        if left_us is not None and left_us + min(pause_us // 10, _SAME_PAUSE_US) < pause_us:
            await to_the_end(self._engine.ban(key, pause_us, reason, "outbound"))

    def pause_here(self, pause_us: int, reason: str) -> None:
        """Do what `pause` does, and block."""
        self._engine.sync_runner.run_query(self.pause(pause_us, reason))

    def _admit_here(self, bucket: Bucket, key: str) -> Decision:
        """Do what `_admit` does, and block."""
        return self._engine.sync_runner.run_query(self._admit(bucket, key), self._wait_us)

    async def _admit(self, bucket: Bucket, key: str) -> Decision:
        """Charge the cost of a call, after waiting if necessary and allowed.

        Raises:
            RateLimitExceeded: It is refused.
        """
        decision = await self._decide(bucket, key)
        if decision.allowed:
            return decision
        refusal = copy(decision)  # with a status for a handler that answers all refusals alike
        refusal.status = _STATUSES.get(decision.reason, 429)
        raise RateLimitExceeded(refusal)

    async def _decide(self, bucket: Bucket, key: str) -> Decision:
        """Return the decision about a call, after waiting if that may admit it."""
        canonical, subjects = self._engine.keys.normalize(key)
        checks = ((bucket, canonical, self._cost),)
        queues = self._engine.queues
        name = bucket.name, canonical

        async def ask() -> Decision:
            return await answer_of(self._engine.hit(checks, subjects))

        if not self._wait_us:
            return await ask()
        refused: Decision | None = None
        # While others wait, a call joins their queue without a question.
        if not queues.is_queued(name):
            decision = await ask()
            # It is admitted, or refused for something that no wait changes.
            if room_in_us(decision) is None:
                return decision
            refused = decision
        return await queues.wait(name, refused, ask, wait_us=self._wait_us, wait_max=MAX_WAITING)

    def _key_of(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return the key of a call."""
        if isinstance(self._key, str):
            return self._key
        return self._key(*args, **options)

    @cached_property
    def _block(self) -> BucketCaller:
        """The caller of all blocks with these limits, whose objects may exist for one block each."""
        blocks = self._engine.blocks
        identity = self._rule or DEFAULT_RULE, self._limits, self._cost, self._wait_us
        caller = blocks.get(identity)
        if caller is None:
            caller = remember(blocks, identity, self._caller(DEFAULT_RULE), MAX_BLOCKS)
        return caller

    def _caller(self, default_rule: str) -> BucketCaller:
        """Return a caller whose limits operators can change as long as it exists.

        Args:
            default_rule: The name of its rule if none was given.
        """
        caller = BucketCaller(Bucket(self._rule or default_rule, self._limits), cost=self._cost, wait_us=self._wait_us)
        self._engine.register(caller)
        return caller


def _name_of(function: Callable[..., object]) -> str:
    """Return a function's rule name: the same in every process, with only characters that a rule may have."""
    unwrapped = inspect.unwrap(function)
    name = _NOT_IN_RULES.sub("_", f"{unwrapped.__module__}.{unwrapped.__qualname__}")
    if len(name) <= MAX_NAME:
        return name
    # The end of a name says most; the digest distinguishes it from others with the same end.
    digest = blake2b(name.encode(), digest_size=4).hexdigest()
    tail_length = MAX_NAME - len(digest) - 1
    return f"{digest}.{name[-tail_length:]}"
