"""Several processes on one Redis: the bound holds over all of them, whatever their clocks say and however they end.

What was admitted is known from the store's own times, taken together from all processes.
"""

from collections.abc import Sequence

import pytest

from slidegate import Limit

from ...redis_servers import RedisServer, needs_redis
from ...soak.checks import most_inside
from .worker import at_work

pytestmark = needs_redis


@pytest.fixture(autouse=True)
def _empty(server: RedisServer) -> None:
    server.command("FLUSHALL")


def most_in_any(times_us: Sequence[int], window_us: int) -> int:
    """Return the largest number of moments that any half-open interval of a length holds."""
    return most_inside(((time_us, time_us) for time_us in times_us), window_us - 1)[0]


@pytest.mark.parametrize(
    ("processes", "amount", "window_us"),
    [
        pytest.param(4, 200, 500_000, id="slices"),
        pytest.param(4, 50, 500_000, id="times of every unit", marks=pytest.mark.all),
        pytest.param(8, 10_000, 2_000_000, id="large", marks=pytest.mark.deep),
    ],
)
def test_processes_together_get_exactly_the_amount_in_any_window(
    server: RedisServer, processes: int, amount: int, window_us: int
) -> None:
    limit = Limit(amount, f"{window_us // 1_000}ms")
    with at_work([0] * processes, server.url, str(limit), 5 * window_us // 2) as times_us:
        pass
    assert len([time_us for time_us in times_us if time_us < times_us[0] + window_us]) == amount
    assert most_in_any(times_us, window_us) == amount
    assert len(times_us) > amount


@pytest.mark.all
def test_hosts_whose_clocks_disagree_share_one_limit(server: RedisServer) -> None:
    with at_work([-5, -0.25, 0.25, 5], server.url, "100/hour", 1_000_000) as times_us:
        pass
    assert len(times_us) == 100
    assert times_us[-1] - times_us[0] < 5_000_000, "all have the time of the server"
