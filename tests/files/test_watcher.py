"""A file is read whole or not at all, and a changed one takes over without a request or a count lost."""

import asyncio
import gc
import ipaddress
import logging
import os
import random
import re
import socket
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from slidegate import ConfigurationError, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, network
from slidegate import _watcher as watcher
from slidegate._watcher import read_whole, version_of
from slidegate.networks.lists import ListFile, read_entries

from ..asgi import PEER, call, hello, statuses
from ..core.bans.test_bans import Network, neighbours
from ..drawing import examples
from ..web.middlewares import TENCENT, FollowedFiles, end_of_looks, mmdb


def of_size(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)  # it takes no place on the disk


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path.with_name("s")))  # the whole name would be too long
    path.with_name("s").rename(path)


SNARES: dict[str, Callable[[Path, int], object]] = {
    "pipe": lambda path, most: os.mkfifo(path),
    "endless link": lambda path, most: path.symlink_to(path.name),
    "device": lambda path, most: path.symlink_to("/dev/zero"),
    "directory": lambda path, most: path.mkdir(),
    "socket": lambda path, most: bound_socket(path),
    "a byte too many": lambda path, most: of_size(path, most + 1),
    "huge": lambda path, most: of_size(path, 1 << 40),
    "nothing": lambda path, most: None,
}
READERS = [(Networks.from_file, 32), (lambda path: RateLimitMiddleware.from_file(hello, path), 2)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.parametrize("snare", SNARES)
@pytest.mark.parametrize(("read", "most"), READERS)
def test_whatever_a_name_leads_to_is_an_error_at_once(read: Any, most: int, snare: str, tmp_path: Path) -> None:
    """What has the largest size is read, and a name with a NUL is none."""
    of_size(tmp_path / "large", most << 20)
    assert len(read_whole(str(tmp_path / "large"), most << 20)) == most << 20
    SNARES[snare](tmp_path / "given", most << 20)
    too_large = f"given.*expected at most {most} MiB, and it has more"
    with pytest.raises(ConfigurationError, match=too_large if snare in ("a byte too many", "huge") else "given"):
        read(tmp_path / "given")
    with pytest.raises(ConfigurationError, match="null"):
        read(tmp_path / "a\0b")


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some"
    path.write_text("192.0.2.0/24\n")
    fstat, calls = os.fstat, []

    def writes_between(number: int) -> os.stat_result:
        calls.append(number)
        if len(calls) == 2:
            path.write_text("192.0.2.0/24\n198.51.100.0/24\n")
        return fstat(number)

    monkeypatch.setattr(watcher.os, "fstat", writes_between)
    with pytest.raises(ConfigurationError, match=r"path: cannot read .*some: it changes while it is read"):
        Networks.from_file(path)


KINDS = ["list", "config", "operators"]
RELOADED = {
    "list": "list_reloaded: list 'followed': address ranges: 1",
    "config": "/followed: active rules: 1; saved 2",
    "operators": "list_reloaded: list 'followed': nodes of its search tree: 128",
}
MANY = 90_000
"""More requests than a test sends; a configuration has as many and its version as the amounts of two limits."""


class Followed(FollowedFiles):
    """A file of one kind that a middleware follows, in a volume as Kubernetes mounts it: a link in a linked directory.

    Its versions are numbers: that of an address which a list or an operator blocks, or of amounts in a configuration.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        super().__init__(directory)
        self.kind, self.folders, self.path = kind, 0, directory / "followed"
        for name in ("followed", "blocked.netset"):
            (directory / name).symlink_to(f"..data/{name}")
        self.put(self.content(1), "swapped")

    def follow(self) -> None:
        files = [network(self.path)] if self.kind == "operators" else []
        limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.observer], networks=files)
        if self.kind == "config":
            self.app: Any = RateLimitMiddleware.from_file(hello, self.path, limiter=limiter)
            return
        rules = [Rule("*", block=True, when=file.is_in(132203)) for file in files]
        blocked = Networks.from_file(self.path) if self.kind == "list" else None
        rules.append(Rule("*", f"{MANY}/hour"))
        self.app = RateLimitMiddleware(hello, rules=rules, limiter=limiter, blocklist=blocked)

    def content(self, version: int) -> bytes:
        if self.kind == "operators":
            return mmdb(self.directory / "made", {f"198.51.100.{version}/32": TENCENT}).read_bytes()
        if self.kind == "list":
            return f"198.51.100.{version}\n".encode()
        amount = MANY + version
        return f'blocklist = "blocked.netset"\nlimits = ["{amount}/minute", "{amount}/hour"]'.encode()

    def of_other_kind(self) -> bytes:
        """Return a page, or countries where operators are asked for."""
        if self.kind != "operators":
            return b"<html>"
        return mmdb(self.directory / "made", {"198.51.100.0/24": {"country": {"iso_code": "NL"}}}).read_bytes()

    def put(self, content: bytes, how: str) -> None:
        """Write in place, rename another file into place, or replace the directory, which has another file, too."""
        if how == "renamed":
            self.write("..data/fresh", content).replace(self.directory / "..data" / "followed")
        elif how == "written":
            self.write("..data/followed", content)
        else:
            self.folders += 1
            folder, link = self.directory / f"..{self.folders}", self.directory / "..next"
            folder.mkdir()
            self.write(f"{folder.name}/followed", content)
            self.write(f"{folder.name}/blocked.netset", f"192.0.2.{self.folders}")
            link.symlink_to(folder.name)
            link.replace(self.directory / "..data")

    async def at_work(self, *versions: int) -> list[int]:
        if self.kind == "config":
            policy = (await call(self.app)).headers["ratelimit-policy"]
            return sorted({int(amount) - MANY for amount in re.findall(r"q=(\d+)", policy)})
        statuses = [(await call(self.app, client=(f"198.51.100.{one}", 1))).status for one in versions]
        return [one for one, status in zip(versions, statuses, strict=True) if status == 403]


class Watched(RuleBasedStateMachine):
    """A version is taken when two looks in a row have found it, whole and the last one; none is missed, and no request.

    What cannot be used is reported once, and what was at work stays.
    """

    @initialize(kind=st.sampled_from(KINDS), backend=st.sampled_from(["asyncio", "trio"]), at_first=st.booleans())
    def start(self, kind: str, backend: str, at_first: bool) -> None:
        self.patched, self.directory, self.backend = pytest.MonkeyPatch(), TemporaryDirectory(), backend
        self.file = Followed(Path(self.directory.name), kind)
        for module in ("files.config", "networks.lists", "networks.operators"):
            self.patched.setattr(f"slidegate.{module}.read_whole", self.read)
        self.patched.setattr(watcher, "version_of", self.version_of)
        self.disk: tuple[int, bool] | None = (1, True)
        """Its version, and whether that can be used; None where it is gone."""
        self.versions = self.at_work = 1
        self.seen = self.decided = self.disk
        self.expected: list[str] = []
        self.meanwhile, self.is_read = "reads" if at_first else "", False
        self.file.follow()
        self.next_look_s = self.file.seconds() + 1

    def teardown(self) -> None:
        self.patched.undo()
        self.directory.cleanup()

    def read(self, path: str, most: int, option: str = "") -> bytes:
        try:
            return read_whole(path, most, option)
        finally:
            if Path(path) == self.file.path and self.meanwhile == "reads":
                self.meanwhile = ""
                self.replace("swapped")
            self.is_read = Path(path) == self.file.path or self.is_read

    def version_of(self, path: str) -> watcher.FileVersion | None:
        found = version_of(path)
        if Path(path) == self.file.path and self.is_read:
            self.is_read = False
            if self.meanwhile == "has looked for the last time":
                self.meanwhile = ""
                self.replace("swapped")
        return found

    @rule(how=st.sampled_from(["written", "renamed", "swapped"]), of=st.sampled_from(["kind", "kind", "other", "none"]))
    def replace(self, how: str, of: str = "kind") -> None:
        self.versions += 1
        contents = {"kind": self.file.content(self.versions), "other": self.file.of_other_kind(), "none": b""}
        self.file.put(contents[of], how)
        self.disk = self.versions, of == "kind"

    @precondition(lambda self: self.disk)
    @rule()
    def remove(self) -> None:
        (self.file.directory / "..data" / "followed").unlink()
        self.disk = None

    @rule(when=st.sampled_from(["reads", "has looked for the last time"]))
    def replace_when_somebody(self, when: str) -> None:
        """Replace it as soon as it was read once, or found unchanged behind that."""
        self.meanwhile = when

    @rule(passed=st.lists(st.sampled_from(["400ms", "1s", "1s"]), min_size=1, max_size=3))
    def requests(self, passed: list[str]) -> None:
        for span in passed:
            self.look(span)

    def look(self, passed: str) -> None:
        self.file.clock.advance(passed)
        before = self.at_work
        if self.file.seconds() >= self.next_look_s:
            self.next_look_s = self.file.seconds() + 1
            is_steady, self.seen = self.disk == self.seen, self.disk
            if is_steady and self.disk != self.decided and self.meanwhile != "reads":
                self.decided = self.disk
                is_usable = self.disk is not None and self.disk[1]
                self.at_work = self.disk[0] if self.disk is not None and is_usable else self.at_work
                self.expected.append("reloaded" if is_usable else "rejected")
        anyio.run(self.visit, {before, self.at_work}, backend=self.backend)
        kind = "config_" if self.file.kind == "config" else "list_"
        found = [one.removeprefix(kind) for one in self.file.observer.kinds if one.startswith(kind)]
        assert found == self.expected

    async def visit(self, versions: set[int]) -> None:
        async def request() -> None:
            found = await self.file.at_work(self.at_work)
            assert len(found) < 2, "half of one version and half of another"
            assert versions.issuperset(found)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(request)
        end_of_looks()
        candidates = {self.at_work, *versions, *range(1, self.versions + 1)[-3:]}
        assert await self.file.at_work(*candidates) == [self.at_work]


def test_a_file_that_is_followed_is_as_the_model_says() -> None:
    bounds = settings(max_examples=examples(60), stateful_step_count=40, deadline=None, report_multiple_bugs=False)
    run_state_machine_as_test(Watched, settings=bounds)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_becomes_of_a_file_is_logged(kind: str, tmp_path: Path, caplog: Any, monkeypatch: Any) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("no such luck")

    caplog.set_level(logging.INFO, "slidegate")
    followed = Followed(tmp_path, kind)
    followed.follow()
    for content in (followed.content(2) * (2 if kind == "list" else 1), b"<html>"):
        followed.put(content, "written")
        await followed.visit(followed.app)
    assert "Traceback" not in caplog.text
    assert RELOADED[kind] in caplog.text
    for reader in ("networks.lists.ListFile.read", "files.reload.ConfigReader.options", "networks.operators._opened"):
        monkeypatch.setattr(f"slidegate.{reader}", fails)
    followed.put(followed.content(3), "written")
    await followed.visit(followed.app)
    assert "Traceback" in caplog.text
    levels = [record.levelname for record in caplog.records if re.search("_reloaded|_rejected", record.getMessage())]
    assert levels == ["INFO", "ERROR", "ERROR"]
    assert await followed.at_work(1, 2, 3) == [2]


# -- networks in files: which one holds an address, how lines are read, and how a changed file takes over --------------


def following(files: FollowedFiles, networks: Networks) -> RateLimitMiddleware:
    limiter = Limiter(MemoryStore(), observers=[files.observer])
    return RateLimitMiddleware(hello, limits="900/hour", blocklist=networks, limiter=limiter)


async def test_no_lookup_waits_for_a_file_that_is_read(files: FollowedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = Networks.from_file(files.write("a.netset", "192.0.2.0/24\n"))
    begun, go_on = threading.Event(), threading.Event()
    reading = ListFile.read
    read = 0

    def slow(file: ListFile) -> Networks:
        nonlocal read
        read += 1
        begun.set()
        assert go_on.wait(60)
        return reading(file)

    monkeypatch.setattr(ListFile, "read", slow)
    app = following(files, networks)
    files.write("a.netset", "198.51.100.0/24\n")
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200]
    await asyncio.to_thread(end_of_looks)
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200], "the request that looks"
    assert await asyncio.to_thread(begun.wait, 60)
    assert networks == Networks(["192.0.2.0/24"])
    files.clock.advance("1s")
    assert await statuses(app, 1) == [200]
    go_on.set()
    await asyncio.to_thread(end_of_looks)
    assert read == 1, "nor is it read twice at a time"
    assert files.observer.kinds == ["list_reloaded"]
    assert networks == Networks(["198.51.100.0/24"])
    assert app.policy.lists["blocklist"] is networks, "it has its file for who looks at the configuration"


async def test_without_a_thread_a_request_is_answered(files: FollowedFiles, monkeypatch: Any, caplog: Any) -> None:
    networks = Networks.from_file(files.write("a.netset", f"{PEER}\n"))
    app = following(files, networks)

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files.clock.advance("1s")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        assert await statuses(app, 1) == [403]
    assert "no thread to check" in caplog.text


PLAIN = """\
# netset
192.0.2.0/24
198.51.100.7
203.0.113.0/24 ; SBL1
203.0.113.7/32
2001:db8::/32 # office

"""


MORE = ["1.0.0.0,1.0.0.255,AU", "1.0.0.0-1.0.0.255", "1.0.0.0 - 1.0.0.255", "1.0.0.0 255.255.255.0", "1.0.0.0 /24"]
MORE += ["1.0.0.0/255.255.255.0", "1.0.0.*", "deny 1.0.0.0/24;", '{"cidr": "1.0.0.0/24"}', "010.8.8.8", "10/8"]
MORE += ["\u0661.\u0662.\u0663.\u0664", "192.0.2.1/24"]


@pytest.mark.parametrize("line", MORE)
def test_what_means_more_than_an_address_never_becomes_one(files: FollowedFiles, line: str) -> None:
    """Nor do its bytes, where they are no text."""
    entry = re.escape(line.rstrip(";"))
    message = f"line 2: network: '{entry}' (is not an address|needs a prefix length|has host bits set)"
    with pytest.raises(ConfigurationError, match=message):
        Networks.from_file(files.write("blocked.netset", f"192.0.2.0/24\n{line}\n"))
    with pytest.raises(ConfigurationError, match="line 2: network: "):
        Networks.from_file(files.write("blocked.netset", b"192.0.2.1\n\xff\xfe\x00\n"))


@given(st.integers(0, len(PLAIN)))
def test_a_file_that_was_cut_off_is_never_read_as_something_else(length: int) -> None:
    whole, found = ([*read_entries(text.splitlines(keepends=True))] for text in (PLAIN, PLAIN[:length]))
    # Nobody can tell that 192.0.2.1 was to be 192.0.2.17, but all before it is what it was.
    assert found[:-1] == whole[: max(len(found) - 1, 0)]


def lines_of(networks: list[Network], pick: random.Random) -> str:
    """Write networks as real files do: CRLF, comments, upper case, IPv4 in IPv6."""
    lines = ["\ufeff# a list; of many", ""]
    for one in networks:
        text = str(one)
        if pick.random() < 0.3:
            text = text.upper() if one.version == 6 else f"::ffff:{one[0]}/{one.prefixlen + 96}"
        lines.append(text + pick.choice(["", "\t# 5", " ; SBL1", " # bad"]))
    return "\r\n".join(lines)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(neighbours(), neighbours(), st.randoms(use_true_random=False))
def test_lists_are_read_however_real_files_write_them(
    files: FollowedFiles, some: list[Network], more: list[Network], pick: random.Random
) -> None:
    path = files.write("real.netset", lines_of([*some, *more, *some], pick))
    assert Networks.from_file(path) == Networks([*some, *more])


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.deep)])
def test_a_long_list_is_read_and_held_in_300_bytes_for_each_network(count: int, files: FollowedFiles) -> None:
    addresses = (ipaddress.IPv6Address(0x2001_0DB8 << 96 | number << 65) for number in range(count))
    path = files.write("long.netset", "\n".join(f"{address}/64" for address in addresses))
    gc.collect()
    tracemalloc.start()
    try:
        found = Networks.from_file(path)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The peak is that of reading, beside whatever list is at work meanwhile.
    assert held <= peak <= 300 * count, f"held {held:,} bytes, while reading {peak:,}"
    assert len([*found.ranges()]) == count


async def test_a_reload_says_what_has_come_and_gone(files: FollowedFiles) -> None:
    old = """
        default_limits = "9/m"
        blocklist = ["192.0.2.0/24"]
        bans = { scans = { after = "9/m", duration = "1h" } }
        rules = [{ path = "/", limits = "9/m", name = "all" }, { path = "/old", block = true }]
    """
    new = """
        default_limits = "8/m"
        bans = { scans = { after = "7/m", duration = "1h" } }
        rules = [{ path = "/", limits = "3/m; 9/h", name = "all" }, { path = "/n", limits = "1/d" }]
    """
    app = RateLimitMiddleware.from_file(hello, files.write("a.toml", old), limiter=Limiter(observers=[files.observer]))
    expected = [
        "+bans {'scans': {'after': '7/m', 'duration': '1h'}}, -bans {'scans': {'after': '9/m', 'duration': '1h'}}",
        "-blocklist 192.0.2.0/24, +default_limits 8/m, -default_limits 9/m",
        "+rules {'path': '/', 'limits': '3/m; 9/h', 'name': 'all'}",
        "-rules {'path': '/', 'limits': '9/m', 'name': 'all'}",
        "+rules {'path': '/n', 'limits': '1/d'}, -rules {'path': '/old', 'block': True}",
    ]
    for text, said in ((new, re.escape(", ".join(expected))), (old, ".*")):
        files.write("a.toml", text)
        await files.visit(app)
        message = files.observer.events[-1].message
        assert re.fullmatch(rf".*: active rules: \d; saved [\d-]{{10}}T[\d:]{{8}}Z, changes: 9, {said}", message)
