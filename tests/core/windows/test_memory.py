"""Windows, totals and hot keys take no more memory the longer they count, or the more names and keys come."""

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from slidegate.core import HotKeys, MetricWindow, RollingTotals

Count = Callable[[Any, int], object]
KINDS: dict[str, tuple[Callable[[], Any], Count]] = {
    "metrics": (lambda: MetricWindow(4, 100), lambda window, n: window.record(n * 37, f"name {n:08}", rt_us=n)),
    "totals": (lambda: RollingTotals(10, [1_000]), lambda totals, n: totals.add(n * 3, n)),
    "hot keys": (lambda: HotKeys(100, 10, "5s"), lambda keys, n: keys.hit(f"one-hit {n:08}", n * 100)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow(kind: str) -> None:
    if sys.gettrace() is not None:
        pytest.skip("what measures coverage takes memory as well")
    make, count = KINDS[kind]

    def peak_bytes(times: int) -> int:
        tracemalloc.start()
        counted = make()
        for number in range(times):
            count(counted, number)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    peak_bytes(10)
    # Threads of other tests may take some memory meanwhile. Eight bytes a call would be twice as much.
    assert peak_bytes(20_000) < peak_bytes(4_000) + 64_000
