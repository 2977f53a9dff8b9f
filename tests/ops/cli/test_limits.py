"""`slidegate limits` with real stores, and two workers that apply the changes."""

from __future__ import annotations

import re

import pytest

from slidegate import Limiter

from ... import served_by_workers
from ...redis_servers import until
from ...served_by_workers import WORKERS
from ...workers import ask, serving
from .command import Command, use_store


@pytest.mark.all
def test_changes_are_checked_by_running_workers(url: str, slidegate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ("--store", url)

    def policy(address: str) -> set[str | None]:
        """Return the policies of the limits that some requests are answered with."""
        answers = [ask(address) for _ in range(10)]
        return {answer.headers.get("ratelimit-policy") for answer in answers if answer is not None}

    with serving(served_by_workers.__name__, url, SLIDEGATE_SECRET="0123456789abcdef") as address:
        until(lambda: len(use_store(url, Limiter.workers)) == WORKERS, "both workers have said so")
        for name, limit, message in (
            ("apy", "900/second", "'apy': no rule has a limit of this name, as response headers show it; did you mean"),
            ("api", "10", "in the code it is '1000/1s', .* write for example '10/1s' or '10 per 1s', not '10'"),
            ("api", "900/minute", "in the code it is '1000/1s'"),
            ("api", "20000/second", "expected an amount from 1 to 10000"),
        ):
            ended = slidegate("limits", "set", name, limit, "--for", "1h", *store)
            assert ended.code == 2
            assert re.search(message, ended.error)
        assert slidegate("limits", "list", *store).out == ""
        changed = slidegate("limits", "set", "api", "900/second", "--for", "1h", *store).out
        assert re.fullmatch(r"changed: api is 900/1s until \S+Z; 2 workers have it\n", changed)
        ended = slidegate("limits", "restore", "apj", *store)
        assert (ended.code, "the limit apj is not changed; did you mean 'api'?" in ended.err) == (1, True)
        off = slidegate("limits", "off", "--for", "10m", "--reason", "a wrong rule", *store).out
        assert re.fullmatch(r"off: every request passes until \S+Z; 2 workers have it\n", off)
        until(lambda: policy(address) == {None}, "both are off")
        assert [row["name"] for row in slidegate("limits", "list", "--json", *store).rows] == ["*", "api"]
        assert slidegate("limits", "restore", "*", *store).code == 0
        until(lambda: policy(address) == {'"api";q=900;w=1'}, "both are on again")
        value = ("--value", "k-bob", "--for", "1h", *store)
        ended = slidegate("bans", "add", "header:X-API-Key", *value)
        assert ended.code == 1
        assert "2 of the 2 workers on this store have another secret" in ended.error
        assert slidegate("bans", "remove", "header:X-API-Key", "--value", "k-bob", *store).code == 1
        assert slidegate("bans", "list", *store).out == ""
        monkeypatch.setenv("SLIDEGATE_SECRET", "0123456789abcdef")
        assert slidegate("bans", "add", "header:X-API-Key", *value).code == 0
    until(lambda: not use_store(url, Limiter.workers), "they have ended")


@pytest.mark.all
def test_every_worker_of_a_server_applies_a_change_and_its_end(url: str, slidegate: Command) -> None:
    def policies(address: str) -> dict[int, str]:
        """Return the policy of the limit by worker ID; empty while the server does not answer."""
        answers = [answer for _ in range(10) if (answer := ask(address)) is not None]
        return {answer.json()["pid"]: answer.headers["ratelimit-policy"] for answer in answers}

    def all_apply(address: str, amount: int) -> bool:
        seen = policies(address)
        return len(seen) == WORKERS and set(seen.values()) == {f'"api";q={amount};w=1'}

    def set_limit(amount: int, span: str) -> None:
        assert slidegate("limits", "set", "api", f"{amount}/second", "--for", span, "--store", url).code == 0

    with serving(served_by_workers.__name__, url) as address:
        until(lambda: all_apply(address, 1_000), "both workers run")
        set_limit(900, "1h")
        until(lambda: all_apply(address, 900), "both have applied it")
        set_limit(800, "1s")
        until(lambda: all_apply(address, 1_000), "it has ended on both")
    with serving(served_by_workers.__name__, url) as address:
        set_limit(700, "1h")
        until(lambda: all_apply(address, 700), "workers that start later apply it")
