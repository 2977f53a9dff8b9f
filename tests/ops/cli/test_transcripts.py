"""The command as operators see it: every line of transcripts, on real stores, with exit codes and errors.

A transcript has ``$ slidegate ...`` and a few programs of its own, such as ``$ hit KEY TIMES RULE``. The word after
``<`` is stdin. Lines of stderr begin with ``! ``, and an exit code other than 0 stands in the last line.
"""

import io
import re
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule, header

from ...asgi import PEER, hello, statuses
from ...redis_servers import needs_redis, until
from ...workers import ask, serving
from .command import Command, create_store, use_store

WORKERS = 2
Texts = Callable[..., None]
TRANSCRIPTS = Path(__file__).with_name("transcripts")
TIMES = re.compile(r"\b(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)Z|\b(1[6-9]\d{8}\.\d+)")
UNSTEADY = (
    (r"\b359\d\.\d+", "3600.0"),
    (r"\b59 min( \d+ s)?", "1 h"),
    (r"\b23 h 59 min", "1 d"),
    (r" {3,}", "  "),
    (r" at 0x\w+", ""),
)
"""What depends on the moment of a test besides times, and what stands for it in a transcript."""


def since_now(found: re.Match[str]) -> str:
    """Return a time as the minutes from now, rounded to five, unless it is that of a log."""
    unix_s = datetime.fromisoformat(f"{found[1]}Z").timestamp() if found[1] else float(found[2])
    minutes = 5 * round((unix_s - time.time()) / 300)
    return found[0] if minutes < -60 else f"NOW{minutes:+}m" if minutes else "NOW"


class Terminal:
    """Runs the lines of a transcript in a directory of its own."""

    def __init__(self, slidegate: Command, directory: Path, monkeypatch: pytest.MonkeyPatch, url: str = "") -> None:
        self.slidegate, self.home, self.url, self.monkeypatch = slidegate, directory / "home", url, monkeypatch
        self.servers, self.address = ExitStack(), ""
        self.home.mkdir()
        monkeypatch.chdir(self.home)
        monkeypatch.setenv("LOGNAME", "operator")
        monkeypatch.setenv("COLUMNS", "1000")
        if url:
            monkeypatch.setenv("SLIDEGATE_STORE", url)

    def answer(self, line: str) -> str:
        """Return what a command prints."""
        program, *words = shlex.split(line.replace("DIR", str(self.home)))
        words = [word.encode().decode("unicode_escape") if "\\" in word else word for word in words]
        shown: str = getattr(self, f"_{program}")(*words) or ""
        shown = TIMES.sub(since_now, shown.replace(str(self.home), "DIR"))
        for pattern, steady in UNSTEADY:
            shown = re.sub(pattern, steady, shown)
        return shown

    def _slidegate(self, *words: str) -> str:
        if "<" in words:
            self.monkeypatch.setattr("sys.stdin", io.StringIO(f"{words[-1]}\n"))
            words = words[:-2]
        ended = self.slidegate(*words)
        errors = [f"! {line}" for line in ended.err.splitlines() if line and not line.startswith(("Usage:", "Try "))]
        assert all(line.isprintable() for line in errors)
        return "\n".join([ended.out.rstrip("\n"), *errors, f"exit {ended.code}" if ended.code else ""]).strip("\n")

    def _hit(self, key: str, times: str, rule: str, cost: str = "1") -> str:
        name, _, limits = rule.partition("=")
        kind, _, value = key.partition("=")
        who = header(kind.removeprefix("header:")).of(value) if value else key

        async def hit(limiter: Limiter) -> str:
            decided = [await limiter.hit(who, limits, rule=name, cost=int(cost)) for _ in range(int(times))]
            return ", ".join(str(decision.reason) for decision in decided)

        return use_store(self.url, hit)

    def _requests(self, rules: str, times: str) -> str:
        """Send requests to a worker that starts and ends."""

        async def send(limiter: Limiter) -> str:
            name, _, limits = rules.partition("=")
            app: Any = (
                RateLimitMiddleware(hello, rules=[Rule("*", limits, name=name)], limiter=limiter)
                if limits
                else RateLimitMiddleware.from_file(hello, rules, limiter=limiter)
            )
            await limiter.overrides()
            await limiter.reset(PEER)
            return " ".join(map(str, await statuses(app, int(times))))

        return use_store(self.url, send)

    def _serve(self) -> None:
        """Start two workers, after those of before have ended."""
        self.servers.close()
        serve = serving("tests.served_by_workers", self.url, WORKERS, SLIDEGATE_SECRET="0123456789abcdef")
        self.address = self.servers.enter_context(serve)

    def _stop(self) -> None:
        self.servers.close()

    def _until(self, amount: str) -> None:
        policy = None if amount == "off" else f'"api";q={amount};w=1'

        def is_there() -> bool:
            answers = [answer for _ in range(10) if (answer := ask(self.address)) is not None]
            policies = {answer.json()["pid"]: answer.headers.get("ratelimit-policy") for answer in answers}
            return len(policies) == WORKERS and {*policies.values()} == {policy}

        until(is_there, f"both workers answer by {amount}")

    def _reset(self, key: str) -> None:
        assert use_store(self.url, lambda limiter: limiter.reset(key))

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

    def _mkdir(self, name: str) -> None:
        (self.home / name).mkdir()

    def _env(self, *variables: str) -> None:
        for variable in variables:
            self.monkeypatch.setenv(*variable.split("=", 1))

    def _ls(self) -> str:
        return "\n".join(sorted(path.name for path in self.home.iterdir()))


@pytest.mark.parametrize("name", ["bans", "limits", "explain", pytest.param("workers", marks=pytest.mark.all)])
def test_operators_read_and_change_a_store(
    name: str, url: str, slidegate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    terminal = Terminal(slidegate, tmp_path, monkeypatch, url)
    with terminal.servers:
        texts(TRANSCRIPTS / f"{name}.txt", "$ ", terminal.answer)


@pytest.mark.parametrize("name", ["usage", pytest.param("check", marks=needs_redis), "simulate"])
def test_commands_without_a_store_and_errors_are_whole_sentences(
    name: str, slidegate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: Texts
) -> None:
    texts(TRANSCRIPTS / f"{name}.txt", "$ ", Terminal(slidegate, tmp_path, monkeypatch).answer)
