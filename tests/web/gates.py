"""What tests of several rooms ask about a gate and cannot see in its answers."""

from __future__ import annotations

import threading

from starlette.types import Scope

from slidegate.core.decision import Check
from slidegate.web.file_watcher import THREAD


def checks(scope: Scope) -> list[Check]:
    """Return what the limits of all gates and endpoints asked about a request: bucket, key and cost of each."""
    return [check for _, decision in scope["slidegate"].entries for check in decision.checks]


def charged(scope: Scope) -> list[str]:
    """Return the labels of the buckets of these checks."""
    return [bucket.label for bucket, _, _ in checks(scope)]


def end_of_looks() -> None:
    """Wait until every look at a file that a request has begun is over."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(60)
            assert not thread.is_alive()
