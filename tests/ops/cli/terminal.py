"""A terminal in which tests type the command, and a few programs that prepare what it is asked about."""

import asyncio
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import pytest
from redis import Redis
from starlette.applications import Starlette
from starlette.routing import Route

import slidegate as package
from slidegate import Limiter, RateLimitMiddleware
from slidegate.core import SharedRow
from slidegate.limiter import engine
from slidegate.limiter.workers import WORKERS as LIVING
from slidegate.ops.cli import run
from slidegate.ops.slices import WORKERS as STATISTICS_OF
from slidegate.ops.statistics import Statistics

from ...asgi import PEER, page, statuses
from ...contract.player import settle
from ...redis_servers import until
from ...workers import TESTED, ask, serving

ROOT = Path(__file__).resolve().parents[3]
ROUTES = [*(Route(path, page) for path in ("/", "/items", "/export")), Route("/login", page, methods=["GET", "POST"])]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Ended]
"""Runs the command with some arguments."""


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PYTHONPATH": os.pathsep.join((str(TESTED), str(ROOT))), **more}


def use_store(url: str, work: Callable[[Limiter], Awaitable[Any]]) -> Any:
    """Use a store like an application, and close it."""

    async def used() -> Any:
        async with Limiter.from_url(url, deadline="60s") as limiter:
            return await work(limiter)

    return asyncio.run(used())


def create_store(url: str) -> str:
    """Create an empty store, and return its address."""
    use_store(url, lambda limiter: limiter.peek("nobody", "1/minute"))
    return url


def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return what runs the command in this process, as if it had no other limiters."""

    def ran(*words: str) -> Ended:
        capsys.readouterr()
        monkeypatch.setattr(engine, "all_engines", WeakValueDictionary())
        code = run(words)
        return Ended(code, *capsys.readouterr())

    return ran


WORKERS = 2
TIMES = re.compile(r"\b(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)Z|\b(1[6-9]\d{8}\.\d+)")
UNSTEADY = (
    (r"\b359\d\.\d+", "3600.0"),
    (r"\b59 min( \d+ s)?", "1 h"),
    (r"\b23 h 59 min", "1 d"),
    (r" {3,}", "  "),
    (r" at 0x\w+", ""),
    (r"counts-\d+-[0-9a-f]{32}", "counts-OF-THIS-BOOT"),
    (rf"{package.__version__} \({'compiled' if package.__compiled__ else 'interpreted'}\)", "VERSION"),
)
"""What depends on the moment of a test besides times, and what stands for it in a transcript."""
SAME = re.compile(
    r"(rule +what|rule +kind|client +requests) |Refused most often$|limits at endpoints without requests "
    "|not read: refusals, as no worker has written statistics within five minutes$"
)
"""What explanations and simulations have in common, which most of the transcripts leave out."""


def since_now(found: re.Match[str]) -> str:
    """Return a time as the minutes from now, rounded to five, unless it is that of a log or of the stage's clock."""
    unix_s = datetime.fromisoformat(f"{found[1]}Z").timestamp() if found[1] else float(found[2])
    minutes = 5 * round((unix_s - time.time()) / 300)
    if minutes < -60 or found[0].startswith("2027-01-15T08:00:"):
        return found[0]
    return f"NOW{minutes:+}m" if minutes else "NOW"


def snapshot(directory: Path) -> dict[str, object]:
    """Return when files were written, how long they are, and the blocks that they have at their start."""
    found = dict[str, object]()
    for file in filter(Path.is_file, directory.rglob("*")):
        with file.open("rb") as opened:
            at = file.stat()
            found[str(file)] = at.st_mtime_ns, at.st_size, opened.read(at.st_blocks * 512)
    return found


class Terminal:
    """Runs the lines of a transcript in a directory of its own.

    A transcript has ``$ slidegate ...`` and a few programs of its own, such as ``$ worker FILE TIMES``. The word after
    ``<`` is stdin. Lines of stderr begin with ``! ``, and an exit code other than 0 stands in the last line.
    """

    def __init__(self, slidegate: Command, directory: Path, monkeypatch: pytest.MonkeyPatch, url: str = "") -> None:
        self.slidegate, self.home, self.url, self.monkeypatch = slidegate, directory / "home", url, monkeypatch
        self.servers, self.address, self.seen = ExitStack(), "", dict[str, object]()
        self.home.mkdir()
        monkeypatch.chdir(self.home)
        monkeypatch.setenv("LOGNAME", "operator")
        monkeypatch.setenv("COLUMNS", "1000")

    def answer(self, line: str) -> str:
        program, *words = shlex.split(line.replace("DIR", str(self.home)).replace("URL", self.url))
        words = [word.encode().decode("unicode_escape") if "\\" in word else word for word in words]
        shown: str = getattr(self, f"_{program}")(*words) or ""
        shown = TIMES.sub(since_now, shown.replace(str(self.home), "DIR").replace(self.home.parent.name, "PREFIX"))
        for pattern, steady in UNSTEADY:
            shown = re.sub(pattern, steady, shown)
        return shown

    def _slidegate(self, *words: str) -> str:
        if "<" in words:
            self.monkeypatch.setattr("sys.stdin", io.StringIO(f"{words[-1]}\n"))
            words = words[:-2]
        return self._shown(self.slidegate(*words))

    def _each(self, *lines: str) -> str:
        """Run several commands, and show what each says on a line behind its exit code."""
        ends = [self.slidegate(*shlex.split(line)) for line in lines]
        return "\n".join(f"{end.code} {self._shown(end._replace(code=0)).removeprefix('! ')}" for end in ends)

    def _check(self, *names: str) -> str:
        """Check applications of the tests, or what functions of theirs return."""
        return self._each(*[f"check tests.ops.cli.apps:{name}".replace("()", " --factory") for name in names])

    def _file(self, *lines: str) -> str:
        self._write("slidegate.toml", *lines)
        return self._slidegate("check", "slidegate.toml")

    def _explain(self, *words: str) -> str:
        """Explain in text, without what all explanations of workers without statistics have; 1 means refused."""
        shown = self._brief("explain", *words)
        assert shown.endswith("\nexit 1") == (" refused by " in shown)
        return shown.removesuffix("\nexit 1")

    def _simulate(self, *words: str) -> str:
        return self._brief("simulate", "access.log", *words)

    def _brief(self, *words: str) -> str:
        """Run the command, and leave out empty lines, the heads of tables, and what an explanation never reads."""
        return "\n".join(line for line in self._slidegate(*words).splitlines() if line and not SAME.match(line))

    def _shown(self, ended: Ended) -> str:
        errors = [f"! {line}" for line in ended.err.splitlines() if line and not line.startswith(("Usage:", "Try "))]
        assert all(line.isprintable() for line in errors)
        return "\n".join([ended.out.rstrip("\n"), *errors, f"exit {ended.code}" if ended.code else ""]).strip("\n")

    def _sh(self, line: str) -> str:
        """Run a line of a shell, in which ``$PYTHON -m slidegate`` is the command as a process of its own."""
        more = environment(PYTHON=sys.executable)
        ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=more, timeout=120)
        return self._shown(Ended(ended.returncode, ended.stdout, ended.stderr))

    def _ban(self, count: str) -> None:
        rows = ['{"slidegate": "bans", "version": 4}']
        for n in range(int(count)):
            key = f"user:{n}" if n % 3 else f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"
            ban = {"key": key, "reason": f"scan {n % 7}", "by": ("abuse", "manual")[n % 2], "level": 0}
            rows.append(json.dumps({**ban, "since_us": 1_700_000_000_000_000, "until_us": None}))
        use_store(self.url, lambda limiter: limiter.import_bans(rows))

    def _examples(self, *commands: str) -> None:
        for command in commands:
            shown = self.slidegate(*command.split(), "-h")
            assert (shown.code, f"\n  Example: slidegate {command}" in shown.out) == (0, True)

    def _worker(self, rules: str, times: str, method: str = "GET", path: str = "/", observer: str = "") -> str:
        """Send requests to a worker with the rules of a file, and kill it; return their statuses if not all passed."""

        async def work() -> str:
            limiter = Limiter.from_url(self.url, deadline="60s")
            app = RateLimitMiddleware.from_file(Starlette(routes=ROUTES), rules, limiter=limiter)
            if observer:
                Statistics.of(limiter)
            await limiter.overrides()
            found = await statuses(app, int(times), path, method)
            await limiter.engine.workers.write(60.0)
            if observer:
                await Statistics.of(limiter).publish()
            await settle(limiter.store.close())
            counted = ", ".join(f"{len([*same])} x {status}" for status, same in groupby(found))
            return "" if {*found} == {200} else counted

        return asyncio.run(work())

    def _alone(self, times: str, *lines: str) -> str:
        """Send requests to a worker with some lines as rules, after those of before are gone."""
        self._gone()
        self._write("alone.toml", *lines)
        return self._worker("alone.toml", times)

    def _gone(self) -> None:
        """Let the minute pass in which killed workers count as living, and the windows of their client."""

        async def forget(limiter: Limiter) -> None:
            rows = limiter.engine.rows
            for kind in (LIVING, STATISTICS_OF):
                for row in await rows.read(kind, 0, 0):
                    await rows.write(row.worker, SharedRow(kind, 0, b"", 0))
            await limiter.reset(PEER)

        use_store(self.url, forget)

    def _serve(self) -> None:
        """Start two workers, after those of before have ended."""
        self.servers.close()
        serve = serving("tests.served_by_workers", self.url, WORKERS, SLIDEGATE_SECRET="0123456789abcdef")
        self.address = self.servers.enter_context(serve)

    def _until(self, amount: str) -> None:
        policy = None if amount == "off" else f'"api";q={amount};w=1'

        def is_there() -> bool:
            answers = [answer for _ in range(10) if (answer := ask(self.address)) is not None]
            policies = {answer.json()["pid"]: answer.headers.get("ratelimit-policy") for answer in answers}
            return len(policies) == WORKERS and {*policies.values()} == {policy}

        until(is_there, f"both workers answer by {amount}")

    def _unusable(self, *names: str) -> str:
        """Show the one line by which neither a reading nor a writing command uses each store; no file changes."""
        ends = []
        for name in names:
            before, store = snapshot(self.home), ["--store", f"lmdb://{self.home / name}"]
            read = self.slidegate("bans", "list", *store)
            assert self.slidegate("bans", "add", "user:1", "--for", "1h", *store) == read
            assert (read.code, read.out, snapshot(self.home)) == (1, "", before)
            ends.append(read.err)
        return "".join(ends)

    def _create(self, url: str) -> None:
        create_store(url)

    def _write(self, name: str, *lines: str) -> None:
        """Write a file, or add to it if the name begins with a plus."""
        with (self.home / name.lstrip("+")).open("a" if name.startswith("+") else "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def _log(self, name: str, count: str, *settings: str) -> None:
        chosen = {"client": "203.0.113.7", "path": "/", "prefix": "", "pace": "1", "second": "{second}"}
        chosen |= dict(setting.split("=", 1) for setting in settings)
        form = '{prefix}{client} - - [{at}] "GET {path} HTTP/1.1" 200 1 "-" "curl/8"'
        lines = []
        for n in range(int(count)):
            second = int(chosen["second"].format(second=int(n * float(chosen["pace"]))))
            at = f"03/Mar/2020:{10 + second // 3600}:{second // 60 % 60:02}:{second % 60:02} +0000"
            lines.append(form.format(at=at, **{part: text.format(n=n, second=second) for part, text in chosen.items()}))
        self._write(name, *lines)

    def _env(self, *variables: str) -> None:
        for variable in variables:
            self.monkeypatch.setenv(*variable.split("=", 1))

    def _set(self, name: str, value: str) -> None:
        """Set a constant of the command, by its module and name."""
        self.monkeypatch.setattr(f"slidegate.ops.{name}", json.loads(value))

    def _same(self) -> str:
        """Say whether all files, and the data of Redis, are as they were at the last call."""
        before, self.seen = self.seen, snapshot(self.home.parent)
        if self.url.startswith("redis"):
            client: Any = Redis.from_url(self.url.partition("?")[0])
            self.seen["changes"] = client.info("persistence")["rdb_changes_since_last_save"]
        return "the same" if self.seen == before else "changed"
