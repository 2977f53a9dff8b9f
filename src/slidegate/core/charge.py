"""By what a store finds what a decision charged."""

from __future__ import annotations

from typing import Any, Self


class Charge(list[Any]):
    """What a decision charged, limit by limit: the state of the window, or (mark, units) by which the store finds it.

    Copies of a decision share it, however deep, so that it is handed back once. A pickled one is empty: the decision
    comes back as something to read.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return self.__class__, ()
