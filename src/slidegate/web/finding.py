"""What a finding is, and the findings about one middleware."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

from ..core.logs import logger

MOST_NAMED: Final = 10
"""The most rules and routes that findings of one kind name."""
REQUESTS_CHECKED: Final = 1_000
"""The number of requests that are checked."""


class Finding(NamedTuple):
    """A setting that works, but probably not as intended.

    Attributes:
        code: Its kind, for example ``"SG103"``.
        message: The probable mistake and its remedy.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Findings:
    """The findings about one middleware.

    Attributes:
        reported: The findings so far.
        requests_left: How many of the next requests are checked.
        latest_limits: The limits at endpoints that were met last for the first time, each as a weak reference.
        first: The first requests: the key of the client of each, and a hash of what its header fields name.
    """

    def __init__(self) -> None:
        self.reported: list[Finding] = []
        self.requests_left = REQUESTS_CHECKED
        self.latest_limits: deque[Any] = deque(maxlen=10)
        self.first: list[tuple[str, int]] = []

    def report(self, findings: Iterable[Finding]) -> None:
        """Report the first findings of one kind. If a check raises, that is logged and no request fails."""
        try:
            for finding in islice(findings, MOST_NAMED):
                if finding not in self.reported:
                    self.reported.append(finding)
                    logger.warning("%s", finding)
        except Exception:
            logger.exception("checking for findings failed")
