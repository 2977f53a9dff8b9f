"""The reference model of permits: a number, which only those change who take them and hand them back."""

from .model_window import MAX_UNITS, Answer

OPEN_US = 2**63
"""The wait for a permit, which nobody knows: longer than any other."""


class ModelPermits:
    """The permits of one key under one concurrency limit; the interface is that of `ModelWindow`."""

    holds_units = False
    """A reset finds nothing here, because requests are still under way."""

    def __init__(self) -> None:
        self.taken = 0

    def touch(self, amount: int, now_us: int) -> None:
        """Do nothing: permits have no time."""

    def reset(self) -> None:
        """Do nothing."""

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait; None if it exceeds the amount."""
        need = max(cost, 1)
        if need > amount:
            return None
        return 0 if self.taken + need <= amount else OPEN_US

    def charge(self, now_us: int, cost: int) -> tuple[int, int]:
        """Take permits regardless of the limit; return a moment of no meaning, and how many can be handed back."""
        kept = min(cost, MAX_UNITS - self.taken)
        self.taken += kept
        return 0, kept

    def refund(self, moment_us: int, units: int) -> bool:
        """Hand permits back."""
        self.taken -= units
        return units > 0

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return the state now."""
        return Answer(max(amount - self.taken, 0), None if wait_us == OPEN_US else wait_us, 0, 0)
