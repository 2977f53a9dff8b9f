"""A row that cannot be read costs that row: whatever bytes it has, all others count, and a line in the log names it."""

import json
import logging
from pathlib import Path
from struct import pack
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slidegate import BanPolicy, Limiter
from slidegate.core import Ban, SharedRow, stored
from slidegate.limiter.overrides import LIMITS
from slidegate.limiter.rows import HISTORY
from slidegate.limiter.workers import RULES, WORKERS
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.shared import digest_of
from slidegate.testing import FakeClock

from ..contract.player import settle
from ..contract.programs import HOUR_US, YEAR_2100_US
from ..contract.store_contract import CHECKS
from ..redis_servers import RedisServer
from .redis.stores import fresh_prefix, store_of

POLICY = BanPolicy("1/minute", "1h")
NETWORK, ADDRESS = "198.51.100.0/24", (4, 0xC6336407)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=9),
    st.just("\ud800"),
    st.lists(st.text(max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
FIELDS = {
    **{"key": "192.0.2.0/24", "reason": "why", "by": "ann", "level": 0, "since_us": YEAR_2100_US},
    **{"until_us": YEAR_2100_US + HOUR_US, "over_us": YEAR_2100_US + HOUR_US, "name": "api", "limit": "5/1m"},
    **{"kind": "ban", "target": "user:eve", "at_us": YEAR_2100_US, "version": 1},
}


def damaged(name: str, value: object) -> bytes:
    return json.dumps({**FIELDS, name: value}).encode()


ROWS = st.one_of(
    st.binary(max_size=40),
    st.builds(damaged, st.sampled_from([*FIELDS]), ODD),
    st.builds(lambda row, at: row[:at], st.just(json.dumps(FIELDS).encode()), st.integers(0, 300)),
    ODD.map(json.dumps).map(str.encode),
)
HEADED = st.builds(lambda head, row: head + row, st.sampled_from([b"", b"\0" * 8, b"\x7f" + b"\xff" * 7]), ROWS)


async def all_else_is_as_before(limiter: Limiter, store: Any) -> None:
    """Ask for whatever reads rows, twice, the second time after what has ended was swept."""
    for _ in range(2):
        assert (await settle(store.hit(CHECKS, (ADDRESS,)))).ban.key == NETWORK
        assert await settle(store.bans.find(("user:eve",)))
        assert {"user:eve", NETWORK} <= {ban.key for ban in [ban async for ban in limiter.bans()]}
        await settle(store.bans.strike(POLICY, "user:bob", 1, "why"))
        await settle(store.bans.ban("192.0.2.0/24", HOUR_US, "why", "ann"))
        await settle(store.bans.unban("192.0.2.0/24", "ann"))
        await settle(store.bans.unban("user:bob", "ann"))
        assert await limiter.published() is not None
        assert [change.name for change in await limiter.overrides() if change.reason == "campaign"] == ["search"]
        assert "override" in {action.kind for action in await limiter.history()}


@given(row=HEADED, at=st.integers(0, 9))
@example(row=b"", at=0)
@example(row=b'{"key": "192.0.2.0/24", "why": 1}', at=0)
@example(row=b"short", at=4)
@example(row=b"[5]", at=5)
async def test_in_lmdb(row: bytes, at: int) -> None:
    with TemporaryDirectory() as path:
        clock = FakeClock(YEAR_2100_US)
        store = LmdbStore(Path(path) / "store", max_map_size=1 << 22, wall_clock=clock)
        async with Limiter(store, deadline="20s", on_error="deny") as limiter:
            await prepared(limiter, store)

            def damage(txn: Any) -> None:
                dbs = store._env.counts.dbs
                database, name = [
                    (dbs.bans, b"\xff192.0.2.0/24"),
                    (dbs.bans, b"user:bob"),
                    (dbs.levels, b"user:bob\xffabuse"),
                    (dbs.worker_rows, LIMITS.encode() + bytes(9) + b"x" * 8),
                    (dbs.worker_rows, WORKERS.encode() + bytes(9) + b"x" * 8),
                    (dbs.meta, b"networks"),
                ][at % 6]
                is_list = database is dbs.meta
                assume(not (is_list and row.strip().startswith(b"[")))  # a list of other texts could be read
                txn.put(name, b"another{" + row if is_list else row, db=database)

            while not store._env.run(damage):
                pass
            store._transactions.networks.clear()
            await all_else_is_as_before(limiter, store)
            clock.advance("2h")
            await settle(store.hit(CHECKS))


async def prepared(limiter: Limiter, store: Any) -> None:
    """Fill a store with rows of each kind: what is damaged later, and what has to stay."""
    now_us = YEAR_2100_US
    for key in ("192.0.2.0/24", NETWORK, "user:eve"):
        await settle(store.bans.ban(key, None, "why", "ann"))
    await settle(store.bans.strike(POLICY, "user:bob", 1, "why"))
    await limiter.override("search", "5/1m", "2h", reason="campaign")
    await settle(store.bans.load([Ban("192.0.2.77", "why", "ann", 0, now_us, now_us + HOUR_US)]))


@given(row=st.one_of(HEADED, ROWS.map((b"\xff" * 8).__add__)), at=st.integers(0, 6))
@example(row=b"\xff" * 8 + b'{"key": "192.0.2.0/24", "why": 1}', at=0)
@example(row=b"short", at=0)
@example(row=b"short", at=1)
@example(row=b"\xff" * 8 + b"no ban", at=1)
@example(row=b"short", at=2)
@example(row=b"short", at=3)
@example(row=pack(">qqqq", -1, 2**62, -1, 0), at=4)
@example(row=pack(">qqqq", -1, 2**62, 2**63 - 1, 0), at=4)
@example(row=b"\xff" * 8 + b"5", at=5)
@example(row=b"\xff" * 8 + b'{"version": 1}\n{', at=5)
async def test_in_redis(row: bytes, at: int, server: RedisServer) -> None:
    prefix = fresh_prefix()
    store = store_of(server, prefix=prefix)
    async with Limiter(store, deadline="20s", on_error="deny") as limiter:
        await prepared(limiter, store)
        published = pack(">qqq", await settle(store.shared_rows.time()), 5, 0)  # the text 5
        await settle(store.shared_rows.write(b"worker55", SharedRow(WORKERS, 0, published, HOUR_US)))
        packing = store.parts.packing
        meta, windows, struck = packing.meta, packing.name_of("user:bob"), packing.names_of("user:carl")[1]
        hash_, field = [
            (meta + b":networks", b"192.0.2.0/24"),
            (windows, b"b"),
            (struck, digest_of(POLICY.name)),
            (meta + b":rows:" + LIMITS.encode() + b":0", b"x" * 8),
            (meta + b":rows:" + WORKERS.encode() + b":0", b"x" * 8),
            (meta + b":rows:" + RULES.encode() + b":5", b"x" * 8),
            (meta + b":rows:" + HISTORY.encode() + b":0", b"x" * 8),
        ][at]
        server.command("HSET", hash_, field, row)
        server.command("HSET", meta, "networks", "another")
        async with Limiter(store_of(server, prefix=prefix), deadline="20s", on_error="deny") as worker:
            assert (await settle(worker.store.hit(CHECKS, ("user:bob",)))).reason in ("ok", "banned")
            for shadow in (False, True):
                policy = BanPolicy("9/1m", "1h", name="abuse", shadow=shadow)
                await settle(worker.store.bans.strike(policy, "user:carl", 1, "why"))
            await all_else_is_as_before(worker, worker.store)


def test_the_log_names_each_row_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        assert stored.readable(json.loads, b"no \x1b row of ours") is None
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "slidegate: a row of the store cannot be read (JSONDecodeError), and is left out: b'no \\x1b row of ours'"
    )
