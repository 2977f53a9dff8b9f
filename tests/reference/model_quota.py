"""The reference model of a quota: the units of one period, identified by its end."""

from slidegate.core import Quota

from .model_window import Answer

MAX_UNITS = 2**32 - 1


class ModelQuota:
    """The units that one key has spent under one quota; the interface is that of `ModelWindow`.

    Args:
        quota: The quota, which defines the periods.
    """

    def __init__(self, quota: Quota) -> None:
        self.calendar = quota.calendar
        self.end_us = self.spent = 0

    def touch(self, amount: int, now_us: int) -> None:
        """Begin the period of `now_us`, unless the clock has stepped back: units of a newer period go on counting."""
        end_us = self.calendar.period_at(now_us).end_us
        if end_us > self.end_us or not self.spent:
            self.end_us, self.spent = end_us, 0

    @property
    def holds_units(self) -> bool:
        """Whether any unit is spent in the period of the last touch."""
        return self.spent > 0

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait; None if it exceeds the amount."""
        need = max(cost, 1)
        if need > amount:
            return None
        return 0 if self.spent + need <= amount else self.end_us - now_us

    def charge(self, now_us: int, cost: int) -> tuple[int, int]:
        """Charge regardless of the quota; return the end of the period and the number of refundable units."""
        kept = min(cost, MAX_UNITS - self.spent)
        self.spent += kept
        return self.end_us, kept

    def refund(self, moment_us: int, units: int) -> bool:
        """Refund units of the current period, as many as are still counted."""
        if moment_us != self.end_us or not (units and self.spent):
            return False
        self.spent = max(self.spent - units, 0)
        return True

    def reset(self) -> None:
        """Remove all charges."""
        self.spent = 0

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return the state of the quota now."""
        left_us = self.end_us - now_us if self.spent else 0
        return Answer(max(amount - self.spent, 0), wait_us, left_us, left_us)
