"""Places over real processes that are killed and stopped: never more than there are, and they come back."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..redis_servers import AT_REDIS, needs_redis, until
from .permits_worker import Worker

pytestmark = pytest.mark.all
AMOUNT = 3


class Crew:
    """Workers on one store, and the board on which they write what is under way."""

    def __init__(self, url: str, board: Path, number: int) -> None:
        board.write_bytes(bytes(256))
        self._url, self._board = url, board
        self.workers: list[Worker] = []
        for _ in range(number):
            self.hire()

    def hire(self) -> Worker:
        worker = Worker(self._url, AMOUNT, self._board, len(self.workers))
        self.workers.append(worker)
        return worker

    def under_way(self) -> int:
        """Return how many requests are under way, those of killed workers apart."""
        return sum(self._board.read_bytes())

    def forget(self, worker: Worker) -> None:
        with self._board.open("r+b") as file:
            file.seek(self.workers.index(worker))
            file.write(b"\0")

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()


@pytest.fixture(params=["lmdb", AT_REDIS, pytest.param("cluster", marks=[needs_redis, pytest.mark.deep])])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def crew(url: str, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(f"{url}{'&' if '?' in url else '?'}permit_lease=2s", tmp_path / "board", 2)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("rounds", "seed"), [(1, 1), *(pytest.param(40, seed, marks=pytest.mark.deep) for seed in (2, 3))]
)
def test_never_more_than_the_amount_is_under_way_while_workers_are_killed(crew: Crew, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    crew.hire()
    for worker in crew.workers:
        assert worker.ask(f"busy {chance.randrange(10**6)}") == "done"
    alive, most = list(crew.workers), 0
    for _ in range(rounds):
        end_s = time.monotonic() + chance.uniform(0.2, 0.6)
        while time.monotonic() < end_s:
            under_way = crew.under_way()
            most = max(most, under_way)
            assert under_way <= AMOUNT
        victim = alive.pop(chance.randrange(len(alive)))
        victim.kill()
        crew.forget(victim)  # its permits come back later
        newcomer = crew.hire()
        alive.append(newcomer)
        newcomer.ask(f"busy {chance.randrange(10**6)}")
    assert most == AMOUNT
    for worker in alive:
        assert worker.ask("calm") == "done"
        assert worker.ask("held") == "0"
    assert crew.under_way() == 0
    last = crew.hire()
    until(lambda: last.ask("take") == "yes" and last.ask("held") == str(AMOUNT), "the permits of those who were killed")


def test_a_stopped_worker_counts_what_it_has_again_when_it_continues(crew: Crew) -> None:
    first, second = crew.workers
    assert [first.ask("take") for _ in range(AMOUNT)] == ["yes"] * AMOUNT
    first.stop()
    try:
        until(lambda: second.ask("take") == "yes", "a permit of the stopped worker")
    finally:
        first.wake()
    until(lambda: second.ask("take") == "no", "the renewal")
    assert first.ask("held") == str(AMOUNT)
    while second.ask("held") != "0":
        assert second.ask("leave") == "True"
    assert second.ask("take") == "no", "the first has all of them"
    assert [first.ask("leave") for _ in range(AMOUNT)] == ["True"] * AMOUNT
    assert second.ask("take") == "yes"
    assert [first.ask("held"), second.ask("held")] == ["0", "1"]
