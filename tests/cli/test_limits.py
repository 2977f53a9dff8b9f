"""`slidegate limits` with real stores, and two workers that apply the changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule

from .. import served_by_workers
from ..asgi import hello, statuses
from ..redis_servers import until
from ..served_by_workers import WORKERS
from ..workers import ask, serving
from .stores_at_hand import fill, lines, run, touch


async def let_in(limiter: Limiter) -> int:
    """Return how many of eight requests a newly started worker admits."""
    app = RateLimitMiddleware(hello, rules=[Rule("*", "5/minute", name="api")], limiter=limiter)
    await limiter.engine.overrides.refresh()
    await limiter.reset_all()
    return (await statuses(app, 8)).count(200)


def test_a_limit_is_changed_listed_and_restored(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("limits", "set", "api", "2/minute", "--for", "2h", "--reason", "slow\x1b[31m", "--by", "ann")
    assert run(*words, "--store", url) == 0
    assert capsys.readouterr().out.startswith("changed: api is 2/minute until 20")
    assert run("limits", "set", "b", "7", "--for", "30d", "--store", url, "--format", "json") == 0
    (made,) = lines(capsys)
    assert (made["name"], made["limit"], made["until_at"] - made["since_at"]) == ("b", "7", 30 * 86_400)
    assert made["by"]
    assert run("limits", "list", "--store", url, "--format", "json") == 0
    first, second = lines(capsys)
    assert second == made
    assert (first["name"], first["limit"], first["by"]) == ("api", "2/minute", "ann")
    assert run("limits", "list", "--store", url) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["name", "limit", "until", "by", "reason"]
    assert "slow\\x1b[31m" in shown[1]
    assert fill(url, let_in) == 2
    for name in ("api", "b"):
        assert run("limits", "unset", name, "--store", url) == 0
    assert capsys.readouterr().out == "restored: api\nrestored: b\n"
    assert fill(url, let_in) == 5
    assert run("limits", "unset", "api", "--store", url) == 1
    assert "the limit api is not changed" in capsys.readouterr().err
    assert run("limits", "list", "--store", url) == 0
    assert capsys.readouterr() == ("", "every limit is as configured in code\n")


@pytest.mark.parametrize(
    ("name", "limit", "span", "told"),
    [
        *(("api", "5/minute", span, "--for: expected") for span in ("31d", "5", "permanent")),
        ("api", "5/minute", "0s", "--for: must be greater than zero"),
        ("api", "5 a minute", "1h", "limits: '5 a minute'"),
        ("api", "5/minute; 6/hour", "1h", "limit: expected one"),
        ("api", "0", "1h", "expected a whole number from 1"),
        ("a;b", "5/minute", "1h", "limit name"),
        ("slidegate-wrong-tokens", "5/minute", "1h", "cannot be changed"),
    ],
)
def test_what_no_worker_could_take_is_wrong_usage(
    name: str, limit: str, span: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)
    assert run("limits", "set", name, limit, "--for", span, "--store", url) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert run("limits", "list", "--store", url) == 0
    assert capsys.readouterr().out == ""


def test_the_memory_of_a_process_cannot_be_reached_and_no_store_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("list",), ("unset", "api"), ("set", "api", "5/minute", "--for", "1h")):
        assert run("limits", *words, "--store", "memory://") == 2
        assert "no command can access" in " ".join(capsys.readouterr().err.split())
        assert run("limits", *words, "--store", f"lmdb://{tmp_path}/mistyped") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.all
def test_every_worker_of_a_server_takes_a_change_of_the_command_and_its_end(url: str) -> None:
    def policies(address: str) -> dict[int, str]:
        """Return the policy of the limit by worker ID; empty while the server does not answer."""
        answers = [answer for _ in range(10) if (answer := ask(address)) is not None]
        return {answer.json()["pid"]: answer.headers["ratelimit-policy"] for answer in answers}

    def all_say(address: str, amount: int) -> bool:
        seen = policies(address)
        return len(seen) == WORKERS and set(seen.values()) == {f'"api";q={amount};w=1'}

    with serving(served_by_workers.__name__, url) as address:
        until(lambda: all_say(address, 1_000), "both workers are there")
        assert run("limits", "set", "api", "900/second", "--for", "1h", "--store", url) == 0
        until(lambda: all_say(address, 900), "both have taken it")
        assert run("limits", "set", "api", "800/second", "--for", "1s", "--store", url) == 0
        until(lambda: all_say(address, 1_000), "it is over on both")
    with serving(served_by_workers.__name__, url) as address:
        assert run("limits", "set", "api", "700/second", "--for", "1h", "--store", url) == 0
        until(lambda: all_say(address, 700), "workers that start later take it")
