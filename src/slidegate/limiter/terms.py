"""The terms of a rule that a limiter keeps and a store never reads: waiting, the failure policy, the kind of limits."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..core.decision import Bucket


class Terms(NamedTuple):
    """How requests are treated under a bucket, beyond its limits: `Bucket.terms`."""

    wait_us: int = 0
    """How long a request may wait for room instead of being refused, in microseconds."""
    wait_max: int = 0
    """How many requests of one key may wait for room at the same time."""
    tenant: str | None = None
    """The tenant whose share of the permits a request takes, if waiting requests are admitted by fair shares; None for
    first come, first served."""
    on_error: str | None = None
    """The failure policy: "local", "allow" or "deny"; None for that of the limiter."""
    fallback: bool = False
    """Whether these limits replace those of a limits function, because it failed."""


_PLAIN: Final = Terms()


def terms_of(bucket: Bucket) -> Terms:
    """Return the terms of a bucket."""
    terms: Terms | None = bucket.terms
    return _PLAIN if terms is None else terms
