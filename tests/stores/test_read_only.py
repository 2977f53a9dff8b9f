"""A tool that only looks at a store sees what workers see, and changes nothing, whatever the store."""

from collections.abc import Callable
from typing import Any

import pytest

from slidegate.core import SharedRow, StoreUnavailable
from slidegate.core.errors import StoreError
from slidegate.stores.read_only import ReadOnlyStore

from ..contract.player import settle
from ..contract.store_contract import CHECKS, QUESTIONS, SHARED_QUESTIONS
from .conftest import Opened

LOOKING = {"peek", "inspect", "find", "active", "read"}
"""The questions that change nothing."""


async def refusal_of(ask: Callable[[Any], Any], tool: ReadOnlyStore) -> str:
    try:
        await settle(ask(tool))
    except StoreUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", ["memory", "lmdb", "redis"])
async def test_a_read_only_store_looks_and_refuses_every_change(opened: Opened) -> None:
    worker = opened()
    assert (await settle(worker.hit(CHECKS))).remaining == 4
    await settle(worker.bans.ban("user:bob", None, "why", "ann"))
    tool = ReadOnlyStore(worker)
    questions = dict(QUESTIONS)
    if tool.shared_rows is not None:
        questions |= {name: SHARED_QUESTIONS[name] for name in ("write", "read")}
        await settle(worker.shared_rows.write(b"worker00", SharedRow("5s", 0, b"ann", 60_000_000)))
    refused = set()
    for name, ask in questions.items():
        refusal = await refusal_of(ask, tool)
        if refusal:
            refused.add(name)
            assert refusal == f"{worker!r} is open for reading only"
    assert refused == questions.keys() - LOOKING
    assert (await settle(worker.peek(CHECKS))).remaining == (await settle(tool.peek(CHECKS))).remaining == 3
    assert [ban.key for ban in await settle(tool.bans.active())] == ["user:bob"]
    assert tool.bans.may_refuse()


@pytest.mark.parametrize("kind", ["lmdb", "redis"])
async def test_a_tool_creates_nothing(opened: Opened) -> None:
    """Neither one that reads nor one that writes: after a mistyped address it would change what no worker reads."""
    with pytest.raises(StoreError, match="the first worker creates it"):
        await settle(opened(create=False).bans.ban("user:bob", None, "why", "ann"))
    opened_by_a_worker: Any = opened()
    await settle(opened_by_a_worker.hit(CHECKS))
