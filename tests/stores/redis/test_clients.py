"""The clients of a store, what it makes of a server that answers nonsense, and being closed amid everything."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import hiredis
import pytest
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel as RedisSentinel
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider

from slidegate import Decision, Limiter, StoreError
from slidegate.core import Ban, Bucket, Concurrency, Reservation, Snapshot, StoreUnavailable
from slidegate.core.reservation import reserved
from slidegate.stores.redis import RedisStore, clients
from slidegate.testing import RecordingObserver

from ...contract.harness import CHECKS, QUESTIONS, SHARED_QUESTIONS
from ...fault_proxy import FaultProxy, stop_listening
from ...redis_servers import BOUND_S, RedisServer, needs_redis
from ...redis_servers import RedisCluster as ClusterServers
from .stores import PLENTY, hit, store_at

CREDENTIALS: Final = UsernamePasswordCredentialProvider("ann", "pw")
GIVEN: Final[dict[str, Any]] = {"username": "ann", "password": "pw", "retry": Retry(NoBackoff(), 5)}


@pytest.mark.parametrize(
    "given",
    [
        lambda: Redis(**GIVEN, retry_on_error=[OSError], health_check_interval=1),
        lambda: Redis(**GIVEN, unix_socket_path="/s"),
        lambda: RedisSentinel([("127.0.0.1", 1)]).master_for("mymaster", **GIVEN, ssl=True),
        lambda: RedisCluster(**GIVEN, startup_nodes=[ClusterNode("127.0.0.1", 1)], ssl=True, ssl_cert_reqs="none"),
    ],
    ids=["server", "socket", "sentinel", "cluster"],
)
def test_connections_are_as_given_but_for_the_stores_timeouts_and_no_retries(given: Callable[[], Any]) -> None:
    own: Any = clients.open_own(given(), 0.7)
    if isinstance(own, RedisCluster):
        assert getattr(own, "cluster_error_retry_attempts", own.retry._retries) == 0  # the first in redis-py 5
        nodes = *own.nodes_manager.startup_nodes.values(), ClusterNode("127.0.0.1", 2, **own.connection_kwargs)
        kind, connections = given().connection_kwargs["connection_class"], [node.acquire_connection() for node in nodes]
    else:
        kind, connections = given().connection_pool.connection_class, [own.connection_pool.make_connection()]
    for connection in connections:
        assert isinstance(connection, kind)
        assert (connection.username, connection.password) == ("ann", "pw")
        assert (connection.retry._retries, connection.retry_on_error, connection.health_check_interval) == (0, [], 0)
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.7, 0.7)


@pytest.mark.parametrize("kind", ["rediss", "rediss+cluster", "rediss+sentinel"])
async def test_a_listener_without_tls_sees_no_byte_of_the_password(kind: str) -> None:
    seen = list[bytes]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(65_536))
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    path = "/mymaster" if kind.endswith("sentinel") else ""
    store = RedisStore(f"{kind}://ann:s3cret@127.0.0.1:{port}{path}", timeout=PLENTY)
    with pytest.raises(StoreError):
        await hit(store)
    await store.close()
    await stop_listening(listener)
    assert seen
    assert all(sent.startswith(b"\x16\x03") for sent in seen), "the greeting of TLS, and nothing else"
    assert not any(b"s3cret" in sent or b"AUTH" in sent for sent in seen)


@needs_redis
@pytest.mark.parametrize(
    "client",
    [
        lambda server: Redis(unix_socket_path=str(server.socket)),
        lambda server: Redis(port=server.port, decode_responses=True, encoding="latin-1"),
        lambda server: Redis(connection_pool=BlockingConnectionPool.from_url(server.url, max_connections=1)),
        lambda server: Redis.from_url(server.url, protocol=3, single_connection_client=True),
        lambda server: Redis(port=server.port, db=5, username="ann", password="pw"),
        lambda server: Redis(port=server.port, db=5, credential_provider=CREDENTIALS),
    ],
    ids=["socket", "decoding", "blocking pool", "RESP3", "password", "provider"],
)
async def test_a_client_of_any_settings_is_one_to_connect_as(server: RedisServer, client: Any) -> None:
    server.command("ACL", "SETUSER", "ann", "reset", "on", ">pw", "~*", "&*", "+@all")
    async with client(server) as given:
        settings = given.connection_pool.connection_kwargs
        settings["client_name"] = "ours"
        async with store_at(given) as store:
            decisions = await asyncio.gather(*(hit(store, f"user:{number % 30}", "10/hour") for number in range(300)))
            assert all(decisions)
            await store.bans.ban("user:eve", None, "", "ann")
            assert [ban.key for ban in await store.bans.active()] == ["user:eve"]
            user = b"ann" if settings.get("username") or settings.get("credential_provider") else b"default"
            lines = [line for line in server.command("CLIENT", "LIST").splitlines() if b" name=ours " in line]
            assert lines
            for line in lines:
                assert b" db=%d " % settings.get("db", 0) in line
                assert b" user=%s " % user in line
        assert await given.ping(), "it stays open"
        await given.connection_pool.disconnect()


@needs_redis
@pytest.mark.parametrize("running", ["server", "cluster"])
@pytest.mark.parametrize("idle_s", [0.0, 1.1])
async def test_the_end_of_an_idle_connection_is_free(
    running: str, idle_s: float, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, passed_s = request.getfixturevalue(running), 0.0
    monkeypatch.setattr(clients, "monotonic", lambda: time.monotonic() + passed_s)
    observer = RecordingObserver()
    async with (
        store_at(deployment) as store,
        Limiter(store, deadline="60s", on_error="deny", observers=[observer]) as limiter,
    ):
        for spent in range(1, 4):
            assert (await limiter.hit("ann", "10/hour")).remaining == 10 - spent
            await asyncio.sleep(0.01)  # until nothing is on its way
            for each in deployment.masters if isinstance(deployment, ClusterServers) else [deployment]:
                each.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            passed_s += idle_s
            if idle_s:
                time.sleep(0.02)  # noqa: ASYNC251 - the loop learns of nothing meanwhile
            else:
                await asyncio.sleep(0.05)
        assert observer.events == []


@needs_redis
async def test_a_server_that_forbids_evalsha_is_asked_by_eval(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "hosted", "reset", "on", ">pw", "~*", "+@all", "-evalsha", "-script")
    async with store_at(server.url.replace("//", "//hosted:pw@")) as store:
        for spent in range(1, 4):
            assert (await hit(store)).remaining == 5 - spent
        server.command("ACL", "SETUSER", "hosted", "-eval")
        with pytest.raises(StoreUnavailable, match="no permissions to run the 'eval'"):
            await hit(store)


HELD: Final = (Bucket("held", [Concurrency(2)]), "user:ann", 1)


# -- a server that answers nonsense, and being closed amid everything --------------------------------------------------


def packed(value: Any) -> bytes:
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(packed, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    if value is None:
        return b"$-1\r\n"
    return b"$%d\r\n%s\r\n" % (len(value), value)


KNOWN: Final = {
    b"news": packed([bytes(8), [0, b"life", b"", b"", []]]),  # what there is: no bans
    b"CLIENT": b"+OK\r\n",
}


@asynccontextmanager
async def server_that_says(reply: Callable[[list[bytes]], bytes]) -> AsyncIterator[str]:
    """Serve connections as a Redis does that answers whatever `reply` returns once it is set up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    name = b"news" if b"news" in command else command[0].upper()
                    writer.write(KNOWN.get(name) or reply(command))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    await stop_listening(listener)


def nonsense(rng: random.Random, depth: int = 0) -> Any:
    """Return something that a script could answer, and none of ours does."""
    kind = rng.randrange(8 if depth < 3 else 4)
    if kind == 0:
        return rng.choice([0, 1, -1, 2**63 - 1, -(2**63)])
    if kind == 1:
        return None
    if kind < 4:
        return rng.randbytes(rng.choice([0, 1, 8, 24, 37, 60]))
    return [nonsense(rng, depth + 1) for _ in range(rng.randrange(7))]


def nearly(rng: random.Random) -> Any:
    """Return an answer of the scripts' form, of whose parts one is nonsense."""
    if rng.random() < 0.5:
        parts = [bytes(8), b"7", b"0" * 17, bytes(60)]
    else:
        answer = rng.choice([b"", 0, [bytes(60)], [bytes(8)], [b"", 1]])
        parts = [bytes(24), rng.choice([b"", b"4/24=1 key=1", b"7"]), b"0" * 17, answer, []]
    spoilt = rng.choice([parts, parts, next((part for part in parts if isinstance(part, list) and part), parts)])
    spoilt[rng.randrange(len(spoilt))] = nonsense(rng)
    return parts


@pytest.fixture
async def nothing_goes_wrong_that_nobody_deals_with() -> AsyncIterator[None]:
    complaints = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    assert complaints == []


async def outcome(question: Callable[[], Any]) -> Any:
    """Return what a question brings, an error of the store included; anything else is raised."""
    async with asyncio.timeout(BOUND_S):
        try:
            answer = question()
            return await answer if isinstance(answer, Awaitable) else answer
        except StoreError as error:
            return error


def charged(store: RedisStore) -> list[Reservation]:
    """Return what a decision has charged: a unit and a permit."""
    reservations = reserved((*CHECKS, HELD), [1, 0], [1, 1])
    reservations[1].holder = store.batcher().permits
    return reservations


METHODS: Final = {
    **QUESTIONS,
    **SHARED_QUESTIONS,
    "time": lambda store: store.shared_stats.time(),
    "hit of permits": lambda store: store.hit((HELD,)),
    "hit of two keys": lambda store: store.hit(tuple((CHECKS[0][0], key, 1) for key in ("user:7", "user:8"))),
    "refund of permits": lambda store: store.refund(charged(store)),
}
"""A question for each public method that asks Redis."""


@pytest.mark.usefixtures("nothing_goes_wrong_that_nobody_deals_with")
async def test_an_answer_that_is_none_is_a_clear_error_for_every_method(rng: random.Random) -> None:
    """A method answers, or raises a StoreError, whatever the server says; nobody else is told anything else."""

    def reply(command: list[bytes]) -> bytes:
        return packed(rng.choice([nonsense(rng), nearly(rng), nearly(rng), [b"0", [b"user:3", bytes(60)]]]))

    async with server_that_says(reply) as url:
        store = RedisStore(url)
        errors: list[str] = []
        for _ in range(600):  # the first that makes no sense of an answer may give the connection up for all
            names = rng.sample([*METHODS], rng.choice((1, 1, 5)))
            for name, found in zip(
                names, await asyncio.gather(*(outcome(partial(METHODS[name], store)) for name in names)), strict=True
            ):
                kinds = StoreError, Decision, Ban, Snapshot, bool, list, tuple, int
                assert isinstance(found, kinds) or found is None, (name, found)
                errors += [str(found)] if isinstance(found, StoreError) else []
        assert any("sent an unexpected answer" in error for error in errors), errors
        await store.close()


class Sealed(CredentialProvider):
    """A user's provider of credentials that fails."""

    def get_credentials(self) -> tuple[str, str]:
        raise ValueError("the vault is sealed")


@pytest.mark.usefixtures("nothing_goes_wrong_that_nobody_deals_with")
@needs_redis
async def test_what_fails_in_a_function_of_the_user_is_what_the_error_says(server: RedisServer) -> None:
    store = RedisStore(Redis(port=server.port, credential_provider=Sealed()))
    assert "the vault is sealed" in str(await outcome(lambda: store.hit(CHECKS)))
    await store.close()


@pytest.mark.usefixtures("nothing_goes_wrong_that_nobody_deals_with")
@needs_redis
@pytest.mark.parametrize("kind", ["server", "cluster"])
async def test_closing_tells_all(kind: str, server: RedisServer, cluster: ClusterServers, rng: random.Random) -> None:
    async with FaultProxy(server.port) as proxy:
        for _ in range(40):
            store = RedisStore(
                f"redis://127.0.0.1:{proxy.port}" if kind == "server" else cluster.url, timeout=f"{BOUND_S}s"
            )
            other = RedisStore(server.url if kind == "server" else cluster.url, timeout=f"{BOUND_S}s")
            proxy.delay_s = rng.choice([0.0, 0.002])
            if rng.random() < 0.7:
                await store.hit(CHECKS)
            await other.bans.ban(f"user:{rng.random()}", 10_000_000, "", "ann")  # news for the store
            calls = [asyncio.create_task(outcome(partial(rng.choice([*METHODS.values()]), store))) for _ in range(20)]
            await asyncio.sleep(rng.choice([0.0, 0.0, rng.random() * 0.01]))
            await store.close()
            async with asyncio.timeout(BOUND_S):
                for found in await asyncio.gather(*calls):
                    assert not isinstance(found, asyncio.CancelledError)
            await other.close()
