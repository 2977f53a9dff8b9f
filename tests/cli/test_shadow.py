"""``slidegate shadow report`` on published figures."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate.cli import main

from ..asgi import hello, statuses


def served(url: str, rules: list[Rule], requests: int) -> None:
    """Let a middleware answer requests of one client, and end as a worker ends: its figures are in the store."""

    async def serving() -> None:
        async with Limiter.from_url(url, deadline="60s") as limiter:
            app = RateLimitMiddleware(hello, limiter=limiter, rules=rules)
            assert await statuses(app, requests, "/items") == [200] * requests

    asyncio.run(serving())


def test_published_figures_tell_what_each_shadow_rule_would_have_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"lmdb://{tmp_path}/store"
    shadows = [
        Rule("/items", "5/hour", name="strict", shadow=True),
        Rule("/items", "9/hour", name="lax", shadow=True),
        Rule("/items", "100/hour", name="never", shadow=True),
        Rule("*", "50/hour", name="all"),
    ]
    served(url, shadows, 12)
    served(url, shadows, 4)  # of 16 requests the windows of the store let 5 and 9 pass
    words = ["shadow", "report", "--store", url]
    assert main([*words, "--format", "json"]) == 0
    expected = [
        {"rule": "strict", "would_refuse": 11, "passed": 16, "share": 0.6875},
        {"rule": "lax", "would_refuse": 7, "passed": 16, "share": 0.4375},
    ]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == expected
    assert main([*words, "--window", "2h", "--format", "csv"]) == 0
    assert list(csv.DictReader(capsys.readouterr().out.splitlines())) == [
        {name: str(value) for name, value in row.items()} for row in expected
    ]
    assert main(words) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["rule", "would_refuse", "passed", "share"]
    assert (first.split(), second.split()) == (["strict", "11", "16", "68.75%"], ["lax", "7", "16", "43.75%"])


def test_a_store_without_refusals_of_shadows_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"lmdb://{tmp_path}/store"
    served(url, [Rule("*", "5/hour", name="quiet", shadow=True)], 0)
    assert main(["shadow", "report", "--store", url]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "no figures of the last 1h are in this store\n")
    served(url, [Rule("*", "5/hour", name="quiet", shadow=True)], 3)
    assert main(["shadow", "report", "--store", url]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "no shadow rule would have refused one of the last 3 requests\n")


def test_a_store_that_cannot_be_asked_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = f"lmdb://{tmp_path}/store"
    served(there, [Rule("*", "5/hour")], 1)
    for words, code, said in (
        (["--store", f"lmdb://{tmp_path}/mistyped"], 3, "mistyped"),
        (["--store", "redis://127.0.0.1:1/0"], 3, "127.0.0.1"),
        (["--store", "memory://"], 2, "no command reaches it"),
        (["--store", there, "--window", "3 days"], 2, "3 days"),
        ([str(tmp_path)], 2, "unexpected extra argument"),
        ([], 2, "--store URL"),
    ):
        assert main(["shadow", "report", *words]) == code, words
        printed = capsys.readouterr()
        assert said in printed.err, words
        assert (printed.out, printed.err.count("\n")) == ("", 1), words
    assert not (tmp_path / "mistyped").exists()
