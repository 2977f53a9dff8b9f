"""The two rings that remember spent units.

Both answer one question: *how long until at most `room` units are left in the window?* A request of
cost c passes under a limit of N when that wait is 0 for ``room = N - c``. Neither knows N, so a changed
amount keeps its counts. Time is an integer of microseconds and always an argument.

``TimestampWindow`` keeps the time of every unit and is exact: a unit spent at t has left at ``t + W``.

``CounterWindow`` keeps k + 1 counts, of the newest slice and the k before it::

        slice    q        q+1             q+k      q+k+1
                 |--------|-- . . . . . --|--------|--------
        spent    ^ anywhere in here                ^ slice q leaves here: k + 1 slices after its start

A window of length W touches at most k + 1 aligned slices (k = ceil(W / s)), so as long as the sum over
them stays within N, no window of length W holds more than N, wherever it starts. The classic reading of k
slices lets twice as many through: N late in one slice, and N again (1 - 1/k) W later. The price of the extra
slice is that a unit holds its place longer than W: at most W + s where s divides W, else less than W + 2 s. The wait
is known to the microsecond: the oldest slices leave one after the other, and the first moment when enough have left
is the answer.

At rest, each ring holds three numbers, and the rest packed into bytes, because a store may hold a
million of them:

* ``spent``      units in the window, as of the last look;
* ``newest_us``  the time of the newest unit (timestamps) or the end of its slice (counters);
* ``leaves_us``  when the oldest units leave; in between, nothing changes by itself.

Where a clock runs back, times that lie ahead of now are moved back to now. Nothing spent comes back, and a
key is held no longer than a window and a slice, however far the clock stepped. Once units of a window were moved,
earlier charges of it cannot be handed back any more.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

from ..errors import ConfigurationError, quoted

NEVER: Final = -1
"""The wait of a cost that is larger than the limit."""
OPEN: Final = -2
"""The wait for a place (see `places`): it ends when somebody hands one back, and nobody knows when."""

Reading: TypeAlias = tuple[int, int, int, int]
"""The state of one window after charging: units spent, when the oldest leave (a moment), the newest unit's time or
slice end (a moment), and how long the request has to wait here (0, microseconds, `NEVER` or `OPEN`)."""


Refusal: TypeAlias = tuple[int, int, int, int, int]
"""A refusal that a ring remembers until something in it changes: the room that was asked for, when that much is there
(a moment), units spent, when the oldest leave, and the newest unit's time or slice end. It holds until the oldest
leave, on a clock that does not step back. It is one object, so a thread can read it while another changes the ring."""


class Window(Protocol):
    """The interface of a ring, as stores use it."""

    @property
    def spent(self) -> int:
        """The units in the window, as of the last `wait_us` or `add`."""

    @property
    def newest_us(self) -> int:
        """The newest unit's time or slice end; it leaves `Limit.span_us` later."""

    @property
    def leaves_us(self) -> int:
        """The moment when the oldest units leave; 0 while nothing was ever spent."""

    def wait_us(self, now_us: int, room: int) -> int:
        """Return the microseconds until at most `room` units are left: 0 now, `NEVER` for a room below 0."""

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """Spend `cost` units if that leaves at most `amount` in the window, and return the reading, all in one step."""

    def add(self, now_us: int, units: int = 1) -> None:
        """Spend units now, whatever the limit."""

    def charge(self, now_us: int, units: int, resolution: int) -> int:
        """Spend units whatever the limit, as many as the ring can count, and return how many `remove` may hand back.

        Times are kept of the newest `resolution` units, which bind every amount that is kept as times; units that
        they push out cannot be handed back. A slice counts at most 2**32 - 1 units, which is more than any amount.
        """

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """Hand back units spent at `spent_us`; False, and nothing changed, where they have left already."""

    def lies_ahead(self, now_us: int) -> bool:
        """Tell whether a look at `now_us` moves units back, because the clock has stepped back behind them.

        Afterwards an earlier charge cannot be found by its moment, because another charge may have the same one. So a
        store gives such a window another identity, and hands back nothing that was charged under the old one.
        """

    def total(self, now_us: int) -> int:
        """Return the units in the window at `now_us` without changing anything."""


def check_positive(value: object, what: str, example: str = "10") -> int:
    """Return a length if it is a whole number above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{what}: expected a whole number above 0, for example {example}, not {quoted(value)}")
    return value


def refuse_negative(units: int) -> None:
    """Refuse to spend less than nothing."""
    if units < 0:
        raise ValueError(f"units: expected 0 or more, not {quoted(units)}")
