"""Walks a page as its reader does: saves its files, types its commands into terminals, and compares their output.

* A block with the mark ``<!-- file: main.py -->`` is saved.
* A bash block is typed. Where its last command is `uvicorn`, it is a server: it keeps the first terminal until the next
  server is started there, after Ctrl-C. From the first server on, all other blocks are typed into a second terminal.
* A text, http or JSON block behind a bash block is the output. A line of `...` stands for any lines.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..pages.blocks import blocks, varying

PATIENCE_S = 300
HOST = "127.0.0.1"
PORT = "8000"
KEEP = '{ declare -px; declare -f; printf "cd %q\\n" "$PWD"; } > "$TERMINAL"'
"""A terminal knows its environment, its functions and its directory from one command to the next."""


class PageError(Exception):
    """The page and reality differ."""


@dataclass(frozen=True)
class Step:
    """One block of a page: a file to save, or commands to type, and their output."""

    line: int
    code: str
    file: str | None = None
    shown: str | None = None
    varies: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        """Whether the block ends with a server that stays in the foreground."""
        return self.file is None and self.code.strip().splitlines()[-1].startswith("uvicorn ")


def steps(text: str) -> Iterator[Step]:
    """Yield the steps of a reader, in the order of the page."""
    pending: Step | None = None
    for block in blocks(text):
        if block.language in {"text", "http", "json"}:
            if pending is None or pending.file or pending.shown is not None:
                raise PageError(f"line {block.line}: output of no command")
            pending = Step(pending.line, pending.code, shown=block.code, varies=varying(block))
            continue
        if pending is not None:
            yield pending
        if block.language == "bash":
            pending = Step(block.line, block.code)
        elif block.mark == "file":
            pending = Step(block.line, block.code, file=block.value)
        else:
            raise PageError(f"line {block.line}: a {block.language} block that nobody saves or types")
    if pending is not None:
        yield pending


def shape(text: str) -> str:
    """Return a pattern for texts that differ from `text` in their digits and letters alone."""
    parts = re.findall(r"\d+|[A-Za-z]+|.", text, re.DOTALL)
    return "".join(r"\d+" if part.isdigit() else "[A-Za-z]+" if part.isalpha() else re.escape(part) for part in parts)


def pattern(shown: str, varies: tuple[str, ...]) -> re.Pattern[str]:
    """Return what an output has to match."""
    whole = []
    for line in shown.splitlines():
        if line.strip() == "...":
            whole.append(r"(?:.*\n)*?")
            continue
        parts = re.split("(" + "|".join(map(re.escape, varies)) + ")", line.rstrip()) if varies else [line.rstrip()]
        spelt = "".join(shape(part) if part in varies else re.escape(part) for part in parts)
        whole.append(spelt + r"[ \t]*\n")
    return re.compile("".join(whole) + r"\s*")


@dataclass
class Walk:
    """A reader with an empty home in an empty directory, on a machine where port 8000 is another one."""

    home: Path
    port: int
    environment: Mapping[str, str]
    _server: subprocess.Popen[bytes] | None = None
    _said: Path | None = None
    _terminal: int = 1

    def __post_init__(self) -> None:
        """Open two terminals."""
        for number in (1, 2):
            self._place(number).write_text(f"cd {str(self.home)!r}\n", "utf-8")

    def _place(self, terminal: int) -> Path:
        return self.home.parent / f"terminal_{terminal}"

    def _typed(self, code: str, terminal: int, keep: str = "") -> dict[str, object]:
        place = self._place(terminal)
        script = f'set -eo pipefail\n. "{place}"\n{code}\n{keep}\n'
        environment = {**self.environment, "HOME": str(self.home), "UVICORN_PORT": str(self.port)}
        return {"args": ["bash", "-c", script], "env": {**environment, "TERMINAL": str(place)}, "cwd": self.home}

    def _directory(self) -> Path:
        """Return where the reader saves files: the directory of the terminal that was used last."""
        asked = subprocess.run(**self._typed("pwd", self._terminal), capture_output=True, text=True, check=True)  # type: ignore[call-overload]
        return Path(asked.stdout.strip())

    def take(self, step: Step) -> None:
        """Do what one block says."""
        if step.file is not None:
            (self._directory() / step.file).write_text(step.code, "utf-8")
            return
        code = step.code.replace(f":{PORT}", f":{self.port}")
        output = self._serve(code, step) if step.serves else self._run(code, step)
        if step.shown is not None and not self._as_shown(step, output):
            raise PageError(f"line {step.line}: the page shows\n{step.shown}\nand the reader sees\n{output}")

    def _as_shown(self, step: Step, output: str) -> bool:
        assert step.shown is not None
        wanted = pattern(step.shown, step.varies)
        if not step.serves:
            return wanted.fullmatch(output.rstrip() + "\n") is not None
        until_s = time.monotonic() + PATIENCE_S
        while not wanted.match(self._log()):
            if "Traceback" in self._log() or time.monotonic() > until_s:
                return False
            time.sleep(0.05)
        return True

    def _run(self, code: str, step: Step) -> str:
        ended = subprocess.run(
            **self._typed(code, self._terminal, KEEP),  # type: ignore[call-overload]
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
        output = self._plain(ended.stdout)
        if ended.returncode:
            raise PageError(f"line {step.line}: {step.code}ended with {ended.returncode}:\n{output}{ended.stderr}")
        return output

    def _serve(self, code: str, step: Step) -> str:
        self.interrupt()
        self._said = self.home.parent / f"server_{step.line}.log"
        before, _, server = code.rstrip().rpartition("\n")
        typed = self._typed(f"{before}\n{KEEP}\n{server}", 1)
        with self._said.open("wb") as said:
            # A group of its own: Ctrl-C goes to all processes of it.
            self._server = subprocess.Popen(  # type: ignore[call-overload]
                **typed, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._terminal = 2
        until_s = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError), socket.create_connection((HOST, self.port), timeout=PATIENCE_S):
                return self._log()
            if self._server.poll() is not None or time.monotonic() > until_s:
                raise PageError(f"line {step.line}: the server did not start:\n{self._log()}")
            time.sleep(0.05)

    def interrupt(self) -> None:
        """Press Ctrl-C in the first terminal, and wait until the server there has ended."""
        if self._server is None:
            return
        server, self._server = self._server, None
        try:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGINT)
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            raise PageError(f"the server did not end:\n{self._log()}") from late
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait(PATIENCE_S)
        if "Traceback" in self._log():
            raise PageError(f"the server failed:\n{self._log()}")

    def _log(self) -> str:
        return self._plain(self._said.read_text("utf-8", "replace")) if self._said else ""

    def _plain(self, text: str) -> str:
        """Return an output with port 8000, as the page shows it."""
        return text.replace("\r\n", "\n").replace(f":{self.port}", f":{PORT}")
