"""`slidegate explain`: its text, its JSON, files, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.cli import main

EXPECTED = """\
5/minute; 50/hour
  5 per 1m: the time of each unit is kept, so the window is exact
  50 per 1h: the time of each unit is kept, so the window is exact

A client gets at most, whenever the span begins:
               5 in 1s
               5 in 1m
              50 in 1h
           1,200 in 1d
It may spend 5 at once, and come back after 1m.
It is never refused at one request every 72s.
"""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    return streams.out


def test_limits_are_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert said(capsys, "5/minute; 50/hour") == EXPECTED


def test_slices_are_said_with_the_two_ends_of_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "100/minute")
    assert "counted in 64 slices of 0.9375s, and one that runs" in text
    assert "come back after 60s to 60.9375s" in text


def test_programs_get_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(said(capsys, "5/minute; 50/hour", "--format", "json"))
    assert facts["most"] == {"1s": 5, "1m": 5, "1h": 50, "1d": 1_200}
    assert facts["limits"] == ["5/1m", "50/1h"]
    assert (facts["burst"], facts["back_after_s"], facts["steady_every_s"]) == (5, [60.0, 60.0], 72.0)


def test_each_rule_of_a_file_is_explained_and_its_store_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "slidegate.toml", tmp_path / "store"
    file.write_text(
        f"""
store = "lmdb://{store}"
default_limits = "7/minute"
[[rules]]
path = "/health"
exempt = true
[[rules]]
path = "/login"
limits = ["5/minute", {{ quota = "100/day", zone = "UTC" }}]
name = "login"
concurrency = 3
""",
        "utf-8",
    )
    lines = said(capsys, str(file), "--format", "json").splitlines()
    found = {facts["title"]: facts for facts in map(json.loads, lines)}
    assert list(found) == ["rule login", "each route (default_limits)"]
    assert found["rule login"]["limits"] == ["5/1m"]
    assert len(found["rule login"]["others"]) == 2
    assert not store.exists()
    text = said(capsys, str(file))
    assert text.count("the bounds below leave it out") == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read"),
        (b"\0\xff\x1b[2J", "not TOML: 'utf-8' codec"),
        (b'rules = [{ path = "/", limits = "5/minit" }]', "rules[0].limits"),
        (b"rulse = 3", "did you mean 'rules'"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    content: bytes | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slidegate.toml"
    if content is not None:
        file.write_bytes(content)
    for path in (file, tmp_path) if content is None else (file,):
        assert main(["explain", str(path)]) == 2
        streams = capsys.readouterr()
        assert (streams.out, streams.err.count("\n")) == ("", 1)
        assert told in streams.err


@given(st.text(max_size=30) | st.from_regex(r"\A[0-9]{1,12}(/| per )[0-9]{0,6} ?(us|ms|s|m|h|d|w)( ?@[0-9]{1,4})?\Z"))
def test_whatever_the_limits_are_the_command_ends_well(text: str) -> None:
    assert main(["explain", "--format", "json", "--", text]) in {0, 2}
