"""The store of the example in PostgreSQL passes the contract, by public names alone."""

import ast
import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import slidegate.core
import slidegate.stores
from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.core import Bucket, Concurrency, Store, StoreUnavailable
from slidegate.testing import FakeClock
from tests.asgi import hello, statuses
from tests.contract import StoreContract
from tests.examples.postgres_server import DRIVER, PostgresServer, needs_postgres

if DRIVER:
    import psycopg

    from examples.own_store.postgres_store import PostgresStore

pytestmark = [pytest.mark.all, needs_postgres]
FILE = Path(__file__).resolve().parents[2] / "examples" / "own_store" / "postgres_store.py"
TWO = Bucket("render", [Concurrency(2)])


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def conninfo(server: PostgresServer) -> str:
    """Return the address of a database without rows."""
    with psycopg.connect(server.conninfo) as connection:
        connection.execute("DROP TABLE IF EXISTS slidegate")
    return server.conninfo


class TestContract(StoreContract):
    @pytest.fixture(autouse=True)
    def _connect(self, conninfo: str) -> None:
        self.conninfo = conninfo

    def make_store(self, clock: FakeClock) -> Store:
        with psycopg.connect(self.conninfo) as connection:
            if connection.execute("SELECT to_regclass('slidegate')").fetchone() != (None,):
                connection.execute("DELETE FROM slidegate")
        return PostgresStore(self.conninfo, clock=clock)

    def opener(self) -> Callable[[], Store]:
        return partial(PostgresStore, self.conninfo)


def test_it_imports_public_names_alone() -> None:
    """They are documented, too: tests/test_docs.py finds each in the reference."""
    tree = ast.parse(FILE.read_text("utf-8"))
    public = {module.__name__: {*module.__all__} for module in (slidegate, slidegate.core, slidegate.stores)}
    public["slidegate"].add("core")
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "slidegate" in str(node.module)]
    assert [name.name for node in imports for name in node.names if name.name not in public[str(node.module)]] == []
    used = [(ast.unparse(node.value), node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert {name for owner, name in used if owner == "core"} <= public["slidegate.core"]
    assert [name for owner, name in used if name[0] == "_" and "__" not in name and owner != "self"] == ["_asdict"]


async def test_permits_count_in_all_processes_until_they_are_returned_or_their_process_is_dead(
    conninfo: str, clock: FakeClock
) -> None:
    check = (TWO, "user:ann", 1)
    first, other = (PostgresStore(conninfo, clock=clock) for _ in range(2))
    held = [await first.hit([check]), await other.hit([check])]
    assert [bool(decision) for decision in [*held, await first.hit([check])]] == [True, True, False]
    for _ in range(3):  # two leases go by, and only one of the two is alive
        clock.advance("7s")
        await first.renew_permits()
    assert (first.permits_held(), bool(await first.hit([(TWO, "user:ann", 2)]))) == (1, False)
    held.append(await first.hit([check]))
    assert held[-1], "that of the other one is free"
    assert await first.refund(held[0].begin_refund())
    held.clear()
    gc.collect()
    assert await first.hit([(TWO, "user:ann", 2)]), "what nobody can return is free"
    await first.close()
    await other.close()


async def test_limits_that_an_operator_changes_hold_in_every_worker(conninfo: str) -> None:
    workers = [Limiter(PostgresStore(conninfo), deadline="30s") for _ in range(2)]
    rule = Rule("*", "5/minute", name="api")
    apps = [RateLimitMiddleware(hello, limiter=worker, rules=[rule]) for worker in workers]
    first, other = workers
    async with first, other:
        assert await statuses(apps[0], 1) == [200]
        await first.override("api", "2/minute", "10m", by="ann")
        assert await statuses(apps[1], 2) == [200, 429]
        assert [change.name for change in await other.overrides()] == ["api"]
        assert "api" in {rule.name for worker in await other.published() for rule in worker.rules}
        await first.keep_row("note", 7, b"\0\xff", 60_000_000)
        assert [row[0] for row in await other.rows("note", 0, 9)] == [7]
        assert not await other.rows("note", 8, 9)


async def test_a_killed_server_is_an_outage_after_which_bans_are_still_in_force(conninfo: str) -> None:
    server = PostgresServer()
    with server:
        store = PostgresStore(server.conninfo, connections=1)
        await store.bans.ban("user:eve", None, "", "ann")
        server.kill()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="postgres: "):
                await store.hit([(TWO, "user:ann", 1)])
        server.start()
        assert await store.hit([(TWO, "user:ann", 1)])
        refused = await store.hit([(TWO, "user:eve", 1)])
        assert refused.ban
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.peek([(TWO, "user:ann", 1)])


def test_what_has_ended_is_deleted_while_others_ask(conninfo: str, clock: FakeClock) -> None:
    with Limiter(PostgresStore(conninfo, clock=clock), deadline="30s").sync as limiter:
        for number in range(20):
            limiter.hit(f"user:{number}", "1/minute")
        clock.advance("10m")
        limiter.hit("user:ann", "1/minute")
        with psycopg.connect(conninfo) as connection:
            assert connection.execute("SELECT count(*) FROM slidegate WHERE kind = 'window'").fetchone() == (1,)
