"""Runs the commands of a page in a directory of its own, with nothing of this machine but a few tools and Python.

Servers get a port of the system's choice, in the place of the one that the page names.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Final

from slidegate.stores.lmdb import LmdbStore

from .anchors import ROOT

PATIENCE_S: Final = 60
"""How long a hang lasts."""
PAUSE_S: Final = 0.05
TOOLS: Final = (
    *("bash", "cat", "cp", "curl", "cut", "date", "env", "false", "grep", "gzip", "head", "ls", "mkdir", "mv", "rm"),
    *("sed", "seq", "sleep", "sort", "tail", "tee", "touch", "tr", "true", "uniq", "wc", "zcat"),
)
MODULES: Final = ("slidegate", "uvicorn", "pytest", "hypercorn", "granian")
"""Commands that are `python -m` of the same name."""
SERVER: Final = re.compile(r"(?:\w+=\S+ +)*(?:python3? -m )?uvicorn ")
PORT: Final = re.compile(r"--port[ =](\d+)")
HOST: Final = re.compile(r"--host[ =]\S+")
RUNNING: Final = re.compile(r"Uvicorn running on http://127\.0\.0\.1:(\d+)")
EXPORT: Final = re.compile(r"^export (\w+)=(\S+)$", re.MULTILINE)
APPLICATION: Final = """
from slidegate import RateLimitMiddleware
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def home(request):
    return PlainTextResponse("hello")


app = Starlette(routes=[Route("/", home)])
app.add_middleware(RateLimitMiddleware, limits="600/minute")
"""
EVENT: Final = (
    '{"kind": "refused", "time_us": 1700000000000000, "details": {"key": "203.0.113.7", "rule": "everybody"}}\n'
)


class PageShell:
    """A directory with the things that pages take for granted: an application, a configuration, logs, a store."""

    def __init__(self, directory: Path) -> None:
        self.work = directory / "work"
        self.lib = directory / "lib"
        self._bin = directory / "bin"
        self._servers: list[subprocess.Popen[bytes]] = []
        self._ports: dict[str, str] = {}
        for made in (self.work, self.lib, self._bin, directory / "home"):
            made.mkdir()
        self._places = {"/var/lib/app": str(self.lib), "/var/log/nginx": str(self.work)}
        self._environment = {
            "PATH": str(self._bin),
            "HOME": str(directory / "home"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        }
        self._fill_bin()
        self._fill_work()

    def _fill_bin(self) -> None:
        for tool in TOOLS:
            found = shutil.which(tool)
            if found:
                (self._bin / tool).symlink_to(found)
        scripts = {name: f'exec "{sys.executable}" -m {name} "$@"' for name in MODULES}
        # Which extras there are is the business of a test of its own, and nothing is to be fetched.
        scripts |= dict.fromkeys(("python", "python3"), f'exec "{sys.executable}" "$@"') | {"pip": "exit 0"}
        for name, line in scripts.items():
            script = self._bin / name
            script.write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
            script.chmod(0o755)

    def _fill_work(self) -> None:
        lines = (ROOT / "examples" / "demo" / "sample.log").read_bytes().splitlines(keepends=True)
        (self.work / "access.log").write_bytes(b"".join(lines[500:1500]))
        (self.work / "access.log.1.gz").write_bytes(gzip.compress(b"".join(lines[:500])))
        (self.work / "events.jsonl").write_text(EVENT, encoding="utf-8")
        (self.work / "main.py").write_text(APPLICATION, encoding="utf-8")
        (self.work / "slidegate.toml").write_text('limits = "600/minute"\n', encoding="utf-8")
        # The commands of the project's own script have tests of their own, which also look at their names.
        (self.work / "dev.py").write_text('"""Stands in the place of the script that sets up environments."""\n')
        (self.work / "examples").symlink_to(ROOT / "examples")
        LmdbStore(self.lib / "slidegate").close()

    def write(self, name: str, text: str) -> None:
        (self.work / name).write_text(text, encoding="utf-8")

    def run(self, block: str) -> None:
        """Run the lines of a block; a server among them is started, and goes on until the end."""
        lines = block.replace("\\\n", " ").splitlines()
        for serves, part in groupby(lines, key=lambda line: SERVER.match(line) is not None):
            if serves:
                for line in part:
                    self._serve(line)
            else:
                self._type("\n".join(part))

    def _type(self, script: str) -> None:
        for declared, actual in self._ports.items():
            script = re.sub(rf"\b(?:127\.0\.0\.1|localhost):{declared}\b", f"127.0.0.1:{actual}", script)
        done = subprocess.run(
            [str(self._bin / "bash"), "-euo", "pipefail", "-c", self._placed(script)],
            cwd=self.work,
            env=self._environment,
            capture_output=True,
            timeout=2 * PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{said}"
        # Each block has a shell of its own; a reader has one.
        self._environment.update(EXPORT.findall(self._placed(script)))

    def _serve(self, line: str) -> None:
        named = PORT.search(line)
        command = HOST.sub("", PORT.sub("", self._placed(line.partition(" #")[0]))).rstrip(" &")
        log = self.work / f"server-{len(self._servers)}.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [str(self._bin / "bash"), "-c", f"exec {command} --port 0"],
                cwd=self.work,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # its workers end with it, whatever happens to it
            )
        self._servers.append(server)
        end_s = time.monotonic() + PATIENCE_S
        while (found := RUNNING.search(log.read_text("utf-8", errors="replace"))) is None:
            said = log.read_text("utf-8", errors="replace")
            assert server.poll() is None, f"{line}\nended with {server.returncode}:\n{said}"
            assert time.monotonic() < end_s, f"{line}\ndoes not serve:\n{said}"
            time.sleep(PAUSE_S)
        while not _reaches(int(found[1])):  # of several workers, none may listen yet
            assert server.poll() is None, f"{line}\nended with {server.returncode}"
            assert time.monotonic() < end_s, f"{line}\ndoes not listen"
            time.sleep(PAUSE_S)
        self._ports[named[1] if named else "8000"] = found[1]

    def _placed(self, text: str) -> str:
        for place, ours in self._places.items():
            text = text.replace(place, ours)
        return text

    def close(self) -> None:
        """End all servers, as Ctrl-C does, and wait until they have ended."""
        for server in self._servers:
            server.send_signal(signal.SIGINT)
        for server in self._servers:
            try:
                server.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(PATIENCE_S)
                raise


def _reaches(port: int) -> bool:
    """Tell whether somebody accepts connections at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True
