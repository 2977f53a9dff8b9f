"""What the clients of a soak saw, and the limits that they were promised."""

from typing import Final, NamedTuple


class Promise(NamedTuple):
    """One rule of the application: at most `amount` in any window of one key."""

    path: str
    amount: int
    window_s: int
    name: str
    shared: bool = False
    """Whether all clients share one window."""


PROMISES: Final = (
    Promise("/counts", 40, 2, "counts"),
    Promise("/exact", 8, 2, "exact"),
    Promise("/stream", 12, 1, "stream"),
    Promise("/maybe", 20, 2, "maybe"),
    Promise("/wait", 5, 1, "wait"),
    Promise("*", 400, 1, "service", shared=True),
)


class Answer(NamedTuple):
    """One answer. The decision was made at some moment from `sent_s` to `received_s`, by the clock of this machine."""

    client: str
    path: str
    status: int
    sent_s: float
    received_s: float
    banned: bool = False
    retry_after_s: int = 0
    """Whole seconds, rounded up."""

    @property
    def admitted(self) -> bool:
        """Whether the middleware let the request through to the application, which answers 200 or 404."""
        return self.status in (200, 404)


class Sample(NamedTuple):
    """What a worker said about itself at one moment."""

    at_s: float
    rss_mib: float
    tasks: int
    files: int
