"""Runs an example as its reader does: the visit is what its README shows, and then the site answers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from examples.serving import END

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240
"""How long an example may take on a machine that does ten other things."""


@dataclass
class Run:
    """An example that was started.

    Attributes:
        url: The address of the site.
        visit: What the visit printed.
        hints: What was printed about the site, before and after its address.
        rest: What was printed from then on, once the example has ended.
    """

    url: str
    visit: str
    hints: str
    rest: list[str] = field(default_factory=list)


def shown(example: str) -> str:
    """Return the visit as the README of an example shows it."""
    text = (ROOT / "examples" / example / "README.md").read_text("utf-8")
    (visit,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(visit).strip()


@contextmanager
def running(module: str, *, hints: int) -> Iterator[Run]:
    """Run an example, and end it as its reader does."""
    command = [sys.executable, "-m", module, "--port", "0"]
    # Not measured: a process that is interrupted may hang in the tool that measures.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    environment["PYTHONUNBUFFERED"] = "1"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Serving at "):
                break
        visit, over, before = "".join(lines).partition(f"\n{END}\n")
        address = re.search(r"^Serving at (\S+) until Ctrl-C\.$", before, re.MULTILINE)
        assert over, lines
        assert address, lines
        after = "".join(process.stdout.readline() for _ in range(hints))
        run = Run(address[1], visit.strip(), before + after)
        yield run
        process.send_signal(signal.SIGINT)
        run.rest = process.stdout.read().splitlines()
        assert process.wait() == 0
        assert run.rest[-1:] == ["Stopped."]
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
