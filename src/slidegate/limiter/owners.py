"""The identities of counts without a name, which differ between the middlewares of a limiter."""

from __future__ import annotations

from itertools import count
from weakref import WeakKeyDictionary

from ..core.errors import ConfigurationError
from ..stores.forks import ProcessLock


class Owners:
    """The middlewares that count without a name, by what they count.

    Args:
        are_alone: Whether only this process counts, so that the order in which they are created is the same for all.
    """

    def __init__(self, *, are_alone: bool) -> None:
        self._are_alone = are_alone
        self._by_rule: dict[str, WeakKeyDictionary[object, int]] = {}
        self._lock = ProcessLock()  # threads may create middlewares at the same time

    def identity(self, rule: str, owner: object) -> str:
        """Return an identity for counts without a name: `rule` for the first owner, ``rule#2`` for the next.

        An owner that asks again gets the same one.

        Args:
            rule: What identifies them in one owner.
            owner: The middleware that counts. An identity is free again when its owner is gone.

        Raises:
            ConfigurationError: There is another owner, and the store is shared: workers may create them in another
                order, and would count in each other's windows.
        """
        with self._lock:
            owners = self._by_rule.setdefault(rule, WeakKeyDictionary())
            if owner not in owners and owners and not self._are_alone:
                shown = rule.partition(":")[0].replace("|", ":")
                raise ConfigurationError(
                    f"two middlewares of one limiter have limits without a name ({shown!r}), and workers may create "
                    'them in another order; write RateLimitMiddleware(..., name="admin") for one of them, or '
                    'Rule(..., name="api") if they are to count together'
                )
            number = owners.get(owner)
            if number is None:
                taken = set(owners.values())
                number = owners[owner] = next(free for free in count(1) if free not in taken)
        if number == 1:
            return rule
        return f"{rule}#{number}"
