"""Minutes of mixed load on several workers, over LMDB and then over Redis, while workers and servers are killed.

    python3 dev.py soak --minutes 10 --seed 1

uvicorn workers share a socket of the loopback interface and a store. Clients send requests to rules of every kind; some
abuse and are banned, some leave before the answer or in the middle of a stream. Meanwhile workers are killed (SIGKILL)
and started again, and the redis-server is killed, brought back with its append-only file, and paused. At the end the
answers that the clients saw are checked: no window held more than its limit, no ban was lost, no request hung. Workers
may not have grown, nor have tasks or files left over. The exit code is 1 if a promise was broken.
"""

import asyncio
import json
import os
import platform
import random
import re
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from asyncio import StreamReader, StreamWriter
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ..redis_servers import REDIS, RedisServer
from ..stores.redis.stores import eventually
from ..workers import serving
from .checks import Answer, Sample, broken_bounds, grown, leaked, lost_bans

# -- workers, which a supervisor of uvicorn starts and replaces --------------------------------------------------------


PATIENCE_S: Final = 90.0
"""A supervisor asks a worker whether it is well, and waits a minute for one that is killed just then: it starts none
meanwhile, nor does it end."""
FAILURE: Final = re.compile(r"^Traceback.*?\n(\S.*?)$|^Fatal Python error.*?$", re.MULTILINE | re.DOTALL)


class Fleet:
    """Workers on one socket of the loopback interface, by what they write into two files.

    Args:
        count: How many work at a time; the first is never killed, so that a slow leak has the whole time to show.
        directory: Where the files are.
    """

    def __init__(self, count: int, directory: Path) -> None:
        self.count, self._killed = count, set[int]()
        self.log, self.samples = directory / "log", directory / "samples"
        self.samples.touch()

    @property
    def lives(self) -> dict[int, list[Sample]]:
        """What each worker has said about itself, by its process, in the order in which they began."""
        lives = defaultdict[int, list[Sample]](list)
        for line in self.samples.read_text("ascii").splitlines():
            pid, *about = json.loads(line)
            lives[pid].append(Sample(*about))
        return lives

    @property
    def running(self) -> dict[int, list[Sample]]:
        return {pid: samples for pid, samples in self.lives.items() if pid not in self._killed}

    def kill_one(self, chance: random.Random) -> None:
        if others := [*self.running][1:]:  # else another is just beginning
            self._killed.add(pid := chance.choice(others))
            os.kill(pid, signal.SIGKILL)

    def failures(self) -> list[str]:
        """Return a sentence for each worker that ended by itself, and for each error."""
        ended = len(self.running) - self.count
        found = [f"end: {ended} workers ended by themselves"] if ended > 0 else []
        errors = FAILURE.finditer(self.log.read_text("utf-8", "replace"))
        return [*found, *(f"error in a worker: {error[1] or error[0]}" for error in errors)]


# -- clients: raw HTTP over kept connections, some of them greedy, some of them gone before the end --------------------


HANGS_S = 15.0
"""Nobody waits that long: the deadline is 250 ms, a wait for room a second, and a paused server two."""
MOST_ANSWERS = 1_000_000
PATHS = ("/counts", "/counts", "/exact", "/stream", "/maybe?status=200", "/maybe?status=404", "/wait")


class Visitors:
    def __init__(self, port: int, chance: random.Random) -> None:
        self.answers: list[Answer] = []
        self.cut = self.hung = 0
        self._port, self._chance = port, chance
        self.stopped = False

    async def send(self, clients: int, greedy: int) -> None:
        """Send requests until `stopped`, when every client ends after its request; the greedy ones hardly pause."""
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                pause_s = 0.004 if number < greedy else 0.06
                group.create_task(self._visit(number, pause_s))

    async def _visit(self, number: int, pause_s: float) -> None:
        # Two tasks for each client, so that its requests also come side by side.
        client = f"198.51.100.{number // 2 + 1}" if number % 4 < 2 else f"2001:db8:0:{number // 2 + 1:x}::1"
        connection: tuple[StreamReader, StreamWriter] | None = None
        while not self.stopped and len(self.answers) < MOST_ANSWERS:
            leaves = self._chance.random() < 0.05
            keeps = False
            path = "/counts" if pause_s < 0.01 and self._chance.random() < 0.8 else self._chance.choice(PATHS)
            try:
                async with asyncio.timeout(HANGS_S):
                    connection = connection or await asyncio.open_connection("127.0.0.1", self._port)
                    keeps = await self._ask(*connection, client, path, leaves)
            except TimeoutError:
                self.hung += 1
            except (OSError, EOFError):
                self.cut += 1
            if connection is not None and not keeps:
                connection[1].close()
                connection = None
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))
        if connection is not None:
            connection[1].close()

    async def _ask(self, reader: StreamReader, writer: StreamWriter, client: str, path: str, leaves: bool) -> bool:
        """Send one request and record its answer; return whether the connection can be used again."""
        sent_s = time.monotonic()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: soak\r\nX-Forwarded-For: {client}\r\n\r\n".encode())
        if leaves and path != "/stream":
            self.cut += 1
            return False  # before the answer
        head = await reader.readuntil(b"\r\n\r\n")
        received_s = time.monotonic()
        status = int(head[9:12])
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        body = b""
        if not leaves:  # else it leaves in the middle of a stream
            length = fields.get(b"content-length")
            body = await (reader.readexactly(int(length)) if length else reader.readuntil(b"0\r\n\r\n"))
        banned = b"abnormal-usage-detected" in body
        retry_after_s = int(fields.get(b"retry-after", 0))
        path = path.partition("?")[0]
        self.answers.append(Answer(client, path, status, sent_s, received_s, banned, retry_after_s))
        return not leaves and fields.get(b"connection") != b"close"


# -- the soak ----------------------------------------------------------------------------------------------------------


CLIENTS: Final = 40
GREEDY: Final = 4
START_S: Final = 60.0
LOAD_S: Final = 30.0
"""How much longer the load goes on at most, until it has shown something."""
LAGS_S: Final = {"lmdb": 0.0, "redis": 0.25}
"""Where a worker answers without asking Redis, its clock is behind the server's by as long as the last answer took to
come: a few milliseconds on this machine, and more only if the worker stands still itself."""
EXPECTED: Final = (200, 403, 404, 429, 503)


async def soak(store: str, seconds: float, workers: int, seed: int) -> tuple[list[str], list[str]]:
    """Load workers on a store and disturb them; return what broke a promise, and what was seen."""
    chance = random.Random(f"{seed} {store}")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        server = None
        if store == "redis":
            server = stack.enter_context(RedisServer("--appendonly", "yes", "--appendfsync", "everysec"))
        url = server.url if server else f"lmdb://{directory / 'store'}"
        fleet = Fleet(workers, directory)
        files = {"SAMPLES": str(fleet.samples), "LOG": str(fleet.log), "PYTHONFAULTHANDLER": "1"}
        serves = stack.enter_context(ExitStack())
        address = serves.enter_context(serving("tests.soak.worker", url, workers, patience_s=PATIENCE_S, **files))
        await eventually(lambda: len(fleet.lives) == workers, START_S)
        visitors = Visitors(int(address.rpartition(":")[2]), chance)
        sending = asyncio.create_task(visitors.send(CLIENTS, GREEDY))
        faults = await _disturb(fleet, server, chance, time.monotonic() + seconds)
        with suppress(TimeoutError):  # slow workers need longer for the load that the verdict asks for
            await eventually(lambda: not _unseen(visitors.answers), LOAD_S)
        visitors.stopped = True
        await sending
        left = await _at_rest(fleet)
        serves.close()
        broken, seen = _judge(visitors, fleet, faults, LAGS_S[store])
    return [*left, *broken], seen


async def _disturb(fleet: Fleet, server: RedisServer | None, chance: random.Random, until_s: float) -> Counter[str]:
    """Do harm every few seconds until a moment; return what was done how often."""
    done: Counter[str] = Counter()
    while (left_s := until_s - time.monotonic()) > 0:
        await asyncio.sleep(min(chance.uniform(1.5, 6.0), left_s))
        if time.monotonic() >= until_s:
            break
        what = chance.choice(["kill", "kill", "restart", "pause"]) if server else "kill"
        if what == "kill" or server is None:
            fleet.kill_one(chance)
        else:
            begin, end = (server.kill, server.start) if what == "restart" else (server.pause, server.resume)
            await asyncio.to_thread(begin)
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await asyncio.to_thread(end)
        done[what] += 1
    return done


async def _at_rest(fleet: Fleet) -> list[str]:
    """Wait until no worker has tasks and files left over; return what is left after `PATIENCE_S`."""
    quiet_s, found = time.monotonic(), ["end: a worker says nothing about itself any more"]

    def rested() -> bool:
        nonlocal found
        lives = fleet.running
        if len(lives) >= fleet.count and all(said[-1].at_s >= quiet_s for said in lives.values()):
            found = [line for pid, said in lives.items() for line in leaked(f"worker {pid}", said[0], said[-1])]
        return not found

    with suppress(TimeoutError):
        await eventually(rested, PATIENCE_S)
    return found


def _judge(visitors: Visitors, fleet: Fleet, faults: Counter[str], lag_s: float) -> tuple[list[str], list[str]]:
    answers = visitors.answers
    statuses = Counter(answer.status for answer in answers)
    broken = [*fleet.failures(), *broken_bounds(answers), *lost_bans(answers, lag_s)]
    broken += [f"status: {statuses[one]} answers with {one}" for one in statuses if one not in EXPECTED]
    if visitors.hung:
        broken.append(f"hang: {visitors.hung} requests had no answer")
    broken += [f"load: nobody was {what}, so nothing is shown" for what in sorted(_unseen(answers))]
    seen = [
        f"{len(answers):,} answers: " + ", ".join(f"{status} x {statuses[status]:,}" for status in sorted(statuses)),
        f"{sum(answer.banned for answer in answers):,} of them by a ban; {visitors.cut:,} requests without an answer, "
        "by kills or because the client left",
        "faults: " + (", ".join(f"{what} x {count}" for what, count in sorted(faults.items())) or "none"),
    ]
    for pid, samples in fleet.lives.items():
        first, last = samples[0], samples[-1]
        broken += grown(f"worker {pid}", samples)
        seen.append(
            f"worker {pid}: {last.at_s - first.at_s:.0f} s, memory {first.rss_mib:.1f} to {last.rss_mib:.1f} MiB, "
            f"last seen with {last.tasks} tasks and {last.files} files"
        )
    return broken, seen


def _unseen(answers: list[Answer]) -> set[str]:
    kinds = {200: "admitted", 429: "refused"}
    return {"admitted", "refused", "banned"} - {"banned" if one.banned else kinds.get(one.status) for one in answers}


def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser("dev.py soak", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of all parts together")
    parser.add_argument("--seed", type=int, default=None, help="of what clients do, and of the faults")
    parser.add_argument("--workers", type=int, default=3, choices=range(2, 17), metavar="2..16")
    parser.add_argument("--store", choices=[*LAGS_S], default=None, help="only this one")
    options = parser.parse_args(arguments)
    stores = [options.store] if options.store else list(LAGS_S)
    if "redis" in stores and REDIS is None:
        parser.error("there is no redis-server; python3 dev.py test says how to get one, --store lmdb goes without")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}, {datetime.now(UTC):%Y-%m-%d}, CPython {platform.python_version()}", flush=True)
    broken = list[str]()
    for store in stores:
        found, seen = asyncio.run(soak(store, options.minutes * 60 / len(stores), options.workers, seed))
        print(f"\n{store}: {'BROKEN' if found else 'all promises held'}", end="")
        print("", *found, *seen, sep="\n  ", flush=True)
        broken += found
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
