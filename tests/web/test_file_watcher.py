"""A file is read whole or not at all, and a changed one takes over without a request or a count lost."""

import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, network
from slidegate.web import file_watcher
from slidegate.web.file_watcher import read_whole

from ..asgi import call, hello, statuses
from .middlewares import FollowedFiles, end_of_looks
from .network_files import TENCENT, written


def long_way(path: Path) -> None:
    for number in range(100):
        path.with_name(f"{path.name}.{number}").symlink_to(f"{path.name}.{number + 1}")
    path.symlink_to(f"{path.name}.0")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def of_size(path: Path, size: int = 1 << 40) -> None:
    with path.open("wb") as file:
        file.truncate(size)  # it takes no place on the disk


SNARES: dict[str, Callable[[Path], object]] = {
    "pipe": lambda path: os.mkfifo(path),
    "endless link": lambda path: path.symlink_to(path.name),
    "long way": long_way,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "listener": listener,
    "directory": lambda path: path.mkdir(),
    "huge": of_size,
    "nothing": lambda path: None,
}


def read_list(path: Path) -> object:
    return Networks.from_file(path)


def read_configuration(path: Path) -> object:
    return RateLimitMiddleware.from_file(lambda scope, receive, send: None, path)  # type: ignore[arg-type,return-value]


READERS = [(read_list, 32), (read_configuration, 2)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.parametrize("snare", SNARES)
@pytest.mark.parametrize(("read", "most"), READERS)
def test_whatever_a_name_leads_to_is_an_error_at_once(
    read: Callable[[Path], object], most: int, snare: str, tmp_path: Path
) -> None:
    SNARES[snare](tmp_path / "given")
    with pytest.raises(ConfigurationError, match="given"):
        read(tmp_path / "given")


@pytest.mark.parametrize(("read", "most"), READERS)
def test_what_is_larger_than_any_that_is_meant_is_not_read_nor_a_name_with_a_nul(
    read: Callable[[Path], object], most: int, tmp_path: Path
) -> None:
    of_size(tmp_path / "large", (most << 20) + 1)
    with pytest.raises(ConfigurationError, match=f"large.*expected at most {most} MiB, and it has more"):
        read(tmp_path / "large")
    with pytest.raises(ConfigurationError, match="null"):
        read(tmp_path / "a\0b")


def test_the_size_is_bounded_to_the_byte(tmp_path: Path) -> None:
    of_size(tmp_path / "some", 1 << 20)
    assert len(read_whole(str(tmp_path / "some"), 1 << 20)) == 1 << 20
    of_size(tmp_path / "some", (1 << 20) + 1)
    with pytest.raises(ConfigurationError, match="expected at most 1 MiB, and it has more"):
        read_whole(str(tmp_path / "some"), 1 << 20)


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some"
    path.write_text("192.0.2.0/24\n")
    fstat, asked = os.fstat, []

    def writes_between(number: int) -> os.stat_result:
        asked.append(number)
        if len(asked) == 2:
            path.write_text("192.0.2.0/24\n198.51.100.0/24\n")
        return fstat(number)

    monkeypatch.setattr(file_watcher.os, "fstat", writes_between)
    with pytest.raises(ConfigurationError, match=r"path: cannot read .*some: it changes while it is read"):
        Networks.from_file(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
def test_a_file_that_was_regular_a_moment_ago_is_no_pipe_that_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, regular = tmp_path / "some", os.stat(__file__)
    os.mkfifo(path)
    monkeypatch.setattr(file_watcher.os, "stat", lambda *given, **options: regular)
    with pytest.raises(ConfigurationError, match="expected a regular file"):
        read_whole(str(path), 1 << 20)


def after_reading(path: Path, replace: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a file replaced as soon as it was read once."""
    left = [replace]

    def read(given: str, most: int, option: str = "") -> bytes:
        content = read_whole(given, most, option)
        if Path(given) == path and left:
            left.pop()()
        return content

    for module in ("config", "lists", "networks"):
        monkeypatch.setattr(f"slidegate.web.{module}.read_whole", read)


class Followed(FollowedFiles):
    """A file by which a middleware blocks one address: a list, a configuration with one, or that of an operator."""

    def __init__(self, directory: Path, kind: str) -> None:
        super().__init__(directory)
        self.kind = kind
        self.path = self.put(1)
        found = [network(self.path)] if kind == "operators" else []
        limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard], networks=found)
        if kind == "list":
            networks = Networks.from_file(self.path)
            self.app: Any = RateLimitMiddleware(hello, limits="900/hour", limiter=limiter, blocklist=networks)
        elif kind == "operators":
            rules = [Rule("*", block=True, when=found[0].is_in(132203)), Rule("*", "900/hour")]
            self.app = RateLimitMiddleware(hello, rules=rules, limiter=limiter)
        else:
            self.app = RateLimitMiddleware.from_file(hello, self.path, limiter=limiter)

    def put(self, version: int, name: str = "followed", end: str = "") -> Path:
        address = f"198.51.100.{version}"
        if self.kind == "operators":
            made = written(self.directory / "made", {f"{address}/32": TENCENT})
            return self.write(name, made.read_bytes() + end.encode())
        text = f"{address}\n" if self.kind == "list" else f'limits = "900/hour"\nblocklist = ["{address}"]\n'
        return self.write(name, text + end)

    async def at_work(self) -> list[int]:
        asked = [(await call(self.app, client=(f"198.51.100.{version}", 1))).status for version in range(6)]
        return [version for version, status in enumerate(asked) if status == 403]

    def said(self, *endings: str) -> bool:
        """Return whether the events have these endings behind the kind of file."""
        what = "config" if self.kind == "config" else "list"
        return self.heard.kinds == [f"{what}_{ending}" for ending in endings]


@pytest.fixture(params=["list", "config", "operators"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Followed:
    return Followed(tmp_path, request.param)


@pytest.mark.parametrize("how", ["<html>not found</html>", "", "it is gone", "its reader fails"])
async def test_what_cannot_be_used_keeps_what_is_at_work_and_is_said_once(
    followed: Followed, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("no such luck")

    with monkeypatch.context() as patched:
        if how == "it is gone":
            followed.path.unlink()
        elif how == "its reader fails":
            patched.setattr("slidegate.web.lists.ListFile.read", fails)
            patched.setattr("slidegate.web.reload.ConfigReader.options", fails)
            patched.setattr("slidegate.web.networks._opened", fails)
            followed.put(2)
        else:
            followed.write("followed", how)
        for _ in range(3):
            await followed.visit(followed.app)
    assert await followed.at_work() == [1]
    assert followed.said("rejected")
    lines = [record.levelname for record in caplog.records if "_rejected" in record.getMessage()]
    assert lines == ["ERROR"]
    assert ("Traceback" in caplog.text) is (how == "its reader fails")
    followed.put(3)
    await followed.visit(followed.app)
    assert await followed.at_work() == [3]
    assert followed.said("rejected", "reloaded")


@pytest.mark.parametrize("how", ["written", "renamed", "linked"])
async def test_a_version_is_taken_when_it_was_the_same_twice_in_a_row_and_that_is_said_once(
    followed: Followed, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slidegate")
    for version in (2, 3, 4):
        for turn in range(4):  # a writer that has not finished before the last
            fresh = followed.path.with_name(f"{version}.{turn}" if how == "linked" else "fresh")
            path = followed.put(version, "followed" if how == "written" else fresh.name, "\n" * min(turn, 2))
            if how == "linked":
                path = followed.path.with_name("link")
                path.symlink_to(fresh.name)
            if how != "written":
                path.replace(followed.path)
            await followed.look(followed.app)
            assert await followed.at_work() == [version - 1]
        for _ in range(2):
            await followed.look(followed.app)
            assert await followed.at_work() == [version]
    assert followed.said(*["reloaded"] * 3)
    lines = [record.levelname for record in caplog.records if "_reloaded" in record.getMessage()]
    assert lines == ["INFO"] * 3


async def test_a_version_that_is_replaced_once_it_was_read_is_not_put_to_work_and_the_next_one_is(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.put(2)
    after_reading(followed.path, lambda: followed.put(3), monkeypatch)
    await followed.visit(followed.app)
    assert await followed.at_work() == [1]
    assert followed.said()
    await followed.visit(followed.app)
    assert await followed.at_work() == [3]
    assert followed.said("reloaded")


async def test_a_version_that_comes_right_behind_the_last_look_at_the_one_before_is_not_missed(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []
    version_of = file_watcher.version_of

    def look(path: str) -> file_watcher.FileVersion | None:
        found = version_of(path)
        if read:
            read.clear()
            followed.put(3)
        return found

    followed.put(2)
    after_reading(followed.path, lambda: read.append(True), monkeypatch)
    monkeypatch.setattr(file_watcher, "version_of", look)
    await followed.visit(followed.app)
    assert await followed.at_work() == [2]
    await followed.visit(followed.app)
    assert await followed.at_work() == [3]
    assert followed.said("reloaded", "reloaded")


@pytest.mark.parametrize("kind", ["list", "config", "operators"])
async def test_a_version_that_comes_once_the_first_one_was_read_is_not_missed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Followed(tmp_path, kind)  # of the same file: what it writes comes between
    after_reading(tmp_path / "followed", lambda: other.put(2), monkeypatch)
    followed = Followed(tmp_path, kind)
    assert await followed.at_work() == [1]
    await followed.visit(followed.app)
    assert await followed.at_work() == [2]


async def test_a_file_that_is_gone_at_one_look_alone_is_not_rejected(followed: Followed) -> None:
    followed.path.unlink()
    await followed.look(followed.app)
    followed.put(2)
    await followed.visit(followed.app)
    assert await followed.at_work() == [2]
    assert followed.said("reloaded")


async def test_between_two_checks_the_file_is_left_alone(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    stat = os.stat

    def counted(path: Any, **options: Any) -> os.stat_result:
        looked.append(str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", counted)
    for _ in range(50):
        followed.clock.advance("100ms")
        await statuses(followed.app, 10)
        end_of_looks()
    assert looked.count(str(followed.path)) == 5


class Volume(FollowedFiles):
    """A read-only volume as Kubernetes mounts it: links to a directory that another one replaces."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.path = directory / "slidegate.toml"
        self.number = 0
        self.listed = "192.0.2.0/24"
        for name in ("slidegate.toml", "blocked.netset"):
            (directory / name).symlink_to(f"..data/{name}")

    def swap(self, text: str, listed: str | None = None) -> None:
        """Replace both files at once."""
        self.number += 1
        self.listed = self.listed if listed is None else listed
        folder = self.directory / f"..{self.number}"
        folder.mkdir()
        self.write(f"{folder.name}/slidegate.toml", text)
        self.write(f"{folder.name}/blocked.netset", f"{self.listed}\n")
        link = self.directory / "..next"
        link.symlink_to(folder.name)
        link.replace(self.directory / "..data")

    def change(self, step: str, version: int) -> int:
        """Make a change, and return the version of the configuration that is in force after it."""
        text, following = VERSION.format(version=version), VERSION.format(version=version + 1)
        if step == "changed":
            self.swap(following)
        elif step == "in place":
            self.write("..data/slidegate.toml", following)
        elif step == "emptied":
            self.write("..data/slidegate.toml", "")
        elif step == "broken":
            self.swap(f"{following}broken")
        else:
            self.swap(text, "# empty" if step == "empty list" else f"192.0.2.{self.number % 256}")
        return version + 1 if step in ("changed", "in place") else version


VERSION = """
blocklist = "blocked.netset"
limits = ["{version}/minute", "{version}/hour"]
"""
"""Both limits of a version have the same amount, which every answer shows."""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(
    st.lists(
        st.sampled_from(["changed", "broken", "list", "empty list", "in place", "emptied"]), min_size=20, max_size=20
    )
)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reloads_of_every_kind_lose_no_request_and_none_is_decided_by_half_a_file(
    backend: str, tmp_path: Path, steps: list[str]
) -> None:
    """100 requests under each of 20 changes, in each of 5 programs."""
    volume = Volume(Path(mkdtemp(dir=tmp_path)))
    at_work = 900_000
    volume.swap(VERSION.format(version=at_work))
    app: Any = RateLimitMiddleware.from_file(hello, volume.path)
    allowed: set[int] = set()
    answered = 0

    async def visit() -> None:
        nonlocal answered
        answer = await call(app)
        shown = re.findall(r"q=(\d+)", answer.headers["ratelimit-policy"])
        assert answer.status == 200
        assert len(shown) == 2
        assert len(set(shown)) == 1, "half of one version and half of another"
        assert int(shown[0]) in allowed
        answered += 1

    async def main() -> None:
        nonlocal at_work
        for step in steps:
            follows = volume.change(step, at_work)
            allowed.update({at_work, follows})
            for _ in range(3):
                volume.clock.advance("1s")
                async with anyio.create_task_group() as tasks:
                    for _ in range(33):
                        tasks.start_soon(visit)
                end_of_looks()
            at_work = follows
            allowed.intersection_update({at_work})
            await visit()

    anyio.run(main, backend=backend)
    assert answered == 100 * len(steps)
