"""The servers that tests start do what they are told, and so does the proxy in front of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from . import redis_servers
from .fault_proxy import HOST, FaultProxy
from .redis_servers import RedisCluster, RedisServer, needs_redis, needs_valkey, until

BOUND_S = 20
SOON_S = 0.1
"""Long enough to say that nothing comes."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@needs_redis
def test_a_server_answers_over_both_of_its_addresses(server: RedisServer) -> None:
    for url in (server.url, server.unix_url):
        with redis.Redis.from_url(url) as client:
            assert client.ping()


@needs_redis
def test_a_paused_server_says_nothing_until_it_goes_on(server: RedisServer) -> None:
    server.pause()
    with pytest.raises(redis.TimeoutError):
        server.command("PING", bound_s=SOON_S)
    server.resume()
    assert server.command("PING")


@needs_redis
def test_a_killed_server_comes_back_empty_at_the_same_address() -> None:
    with RedisServer() as server:
        server.command("SET", "key", "value")
        url = server.url
        server.kill()
        with pytest.raises(redis.ConnectionError):
            server.command("PING")
        server.start()
        assert (server.url, server.command("EXISTS", "key")) == (url, 0)


@needs_redis
def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="no-such-option"), RedisServer("--no-such-option", "1"):
        pass


@needs_redis
def test_a_server_dies_with_a_test_run_that_is_killed() -> None:
    script = "import sys; from tests.redis_servers import *; s = RedisServer(); s.start(); print(s.pid, s.directory); "
    command = [sys.executable, "-c", script + "sys.stdout.flush(); sys.stdin.read()"]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid, directory = run.stdout.readline().split()
        assert Path(f"{directory}/s").exists()
        run.send_signal(signal.SIGKILL)
    until(lambda: not is_alive(int(pid)), "the server dies")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where nobody collects orphans, what is dead still has a number.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not state.startswith("Z")


@needs_valkey
def test_valkey_is_served_the_same_way() -> None:
    with RedisServer(program=redis_servers.VALKEY) as server:
        assert "valkey_version" in server.info("server")


def test_a_program_that_is_missing_or_too_old_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old-redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=00000000:0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path), os.environ["PATH"])))
    assert redis_servers.version_of(old) == (6, 0, 16)
    assert redis_servers.find("old-redis-server") is None
    assert redis_servers.find("no-such-redis-server") is None


@needs_redis
def test_a_cluster_is_ready_when_all_who_run_agree_that_one_of_them_serves_each_slot() -> None:
    with RedisCluster(replicas=1) as cluster:
        first, *others = cluster.servers
        slot = next(slot for slot in range(100) if cluster.owner(slot) is first)
        first.kill()
        cluster.wait_ok()  # nobody has noticed yet, and each by itself says that all is well
        ids = {cluster.node_id(server) for server in others}
        for server in others:
            rows = server.command("CLUSTER", "SLOTS")
            assert {node.decode() for _, _, (_, _, node, *_), *_ in rows} <= ids
            assert [node for low, high, (_, _, node, *_), *_ in rows if low <= slot <= high] == [
                cluster.node_id(others[-1]).encode()
            ]


# -- the proxy -----------------------------------------------------------------------------------------------------


class Wire:
    """A connection on which lines are sent and read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, line: bytes) -> bytes:
        self.writer.write(line + b"\r\n")
        return await self.read()

    async def read(self) -> bytes:
        async with asyncio.timeout(BOUND_S):
            return await self.reader.readline()

    async def silent(self) -> bool:
        try:
            async with asyncio.timeout(SOON_S):
                return not await self.reader.readline()
        except TimeoutError:
            return True


Connect = Callable[[int], Awaitable[Wire]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects to a port, as often as it is asked to."""
    wires: list[Wire] = []

    async def to(port: int) -> Wire:
        wires.append(Wire(*await asyncio.open_connection(HOST, port)))
        return wires[-1]

    yield to
    for wire in wires:
        wire.writer.close()
        with suppress(ConnectionError):
            await wire.writer.wait_closed()


@pytest.fixture
async def proxy(server: RedisServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.port) as proxy:
        yield proxy


@needs_redis
async def test_a_proxy_passes_everything_on(proxy: FaultProxy, connect: Connect) -> None:
    first, second = await connect(proxy.port), await connect(proxy.port)
    assert [await first.ask(b"ECHO a"), await first.read()] == [b"$1\r\n", b"a\r\n"]
    assert await second.ask(b"PING") == b"+PONG\r\n"
    assert (proxy.accepted, proxy.open_connections, proxy.requests) == (2, 2, 14)


@needs_redis
async def test_a_delay_makes_every_reply_late_by_itself_and_keeps_their_order(
    proxy: FaultProxy, connect: Connect
) -> None:
    wire = await connect(proxy.port)
    await wire.ask(b"PING")
    proxy.delay_s = 3 * SOON_S
    for number in range(10):
        wire.writer.write(b"INCRBY sum%d %d\r\n" % (proxy.port, number))
        await asyncio.sleep(0)
    assert await wire.silent()
    replies = [int((await wire.read())[1:]) for _ in range(10)]
    assert replies == [sum(range(number + 1)) for number in range(10)]


@needs_redis
async def test_a_frozen_proxy_is_silent_and_loses_nothing(proxy: FaultProxy, connect: Connect) -> None:
    wire = await connect(proxy.port)
    proxy.freeze()
    wire.writer.write(b"PING\r\n")
    assert await wire.silent()
    assert proxy.open_connections == 1
    proxy.thaw()
    assert await wire.read() == b"+PONG\r\n"


@needs_redis
async def test_a_reply_is_cut_where_it_was_asked_for(proxy: FaultProxy, connect: Connect) -> None:
    wire = await connect(proxy.port)
    assert await wire.ask(b"PING") == b"+PONG\r\n"
    proxy.cut_after(3)
    wire.writer.write(b"PING\r\n")
    async with asyncio.timeout(BOUND_S):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)) as caught:
            await wire.reader.readexactly(7)
    if isinstance(caught.value, asyncio.IncompleteReadError):
        assert caught.value.partial == b"+PO"
    assert await (await connect(proxy.port)).ask(b"PING") == b"+PONG\r\n"


@needs_redis
async def test_a_refusing_proxy_ends_what_there_is_and_takes_nothing_new(proxy: FaultProxy, connect: Connect) -> None:
    wire = await connect(proxy.port)
    await wire.ask(b"PING")
    port = proxy.port
    await proxy.refuse()
    with pytest.raises(ConnectionResetError):
        await wire.read()
    with pytest.raises(ConnectionRefusedError):
        await connect(port)
    await proxy.accept()
    assert proxy.port == port
    assert await (await connect(port)).ask(b"PING") == b"+PONG\r\n"
