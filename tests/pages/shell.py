"""The terminals of a page's reader: commands are typed into bash, and servers run until another one takes their port.

A server gets a free port in the place of the one that the page names, in what is typed and in what is said.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from ..redis_servers import free_port, until

PATIENCE_S: Final = 300
SERVER: Final = re.compile(r"(?:\w+=\S+ +)*(?:python3? -m )?uvicorn ")
PORT: Final = re.compile(r"--port[ =](\d+)")
HOST: Final = re.compile(r"--host[ =]\S+")
KEEP: Final = '{ declare -px; declare -f; printf "cd %q\\n" "$PWD"; } > "$TERMINAL"'
"""A terminal knows its environment, its functions and its directory from one command to the next."""


class Server:
    """A server in the foreground of its terminal, and what it says."""

    def __init__(self, port: int, log: Path, **command: Any) -> None:
        self.port = port
        self._log = log
        with log.open("wb") as said:
            # A group of its own: Ctrl-C goes to all processes of it.
            self._process = subprocess.Popen(**command, stdout=said, stderr=said, start_new_session=True)

    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def listens(self) -> bool:
        assert self._process.poll() is None, f"the server ended:\n{self.said()}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S):
            return True
        return False

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until it has ended."""
        try:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGINT)
            self._process.wait(PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
        assert "Traceback" not in self.said(), self.said()


class Shell:
    """A reader with a home.

    Args:
        home: Where the terminals open.
        environment: All that is set in them.
        places: Directories of the page -> those that stand for them here.
        terminals: With two, what comes behind the start of a server is typed into the second.
    """

    def __init__(
        self, home: Path, environment: Mapping[str, str], replaced: Mapping[str, str] | None = None, terminals: int = 1
    ) -> None:
        self.home = home
        self._environment = {**environment, "HOME": str(home)}
        self._replaced = replaced or {}
        self._terminals = terminals
        self._terminal = 1
        self._servers: dict[str, Server] = {}
        for number in range(1, terminals + 1):
            self._state(number).write_text(f"cd {shlex.quote(str(home))}\n", "utf-8")

    def write(self, name: str, text: str) -> None:
        """Save a file in the directory where the reader is."""
        (Path(self._type("pwd", self._terminal).strip()) / name).write_text(text, "utf-8")

    def run(self, block: str) -> str:
        """Type the lines of a block and return what they say; a server among them goes on."""
        said, lines = "", block.replace("\\\n", " ").splitlines()
        serves = any(map(SERVER.match, lines))
        for is_server, part in groupby(lines, key=lambda line: SERVER.match(line) is not None):
            if is_server:
                for line in part:
                    self._serve(line)
            else:
                said = self._type("\n".join(part), 1 if serves else self._terminal)
        if serves:
            self._terminal = self._terminals
        return said

    def said(self) -> str:
        """Return what the server says that was started last."""
        return self._as_on_page([*self._servers.values()][-1].said())

    def close(self) -> None:
        while self._servers:
            self._servers.popitem()[1].interrupt()

    def _state(self, terminal: int) -> Path:
        return self.home.parent / f"terminal_{terminal}"

    def _bash(self, code: str, terminal: int) -> dict[str, Any]:
        for directory, ours in self._replaced.items():
            code = code.replace(directory, ours)
        for declared, server in self._servers.items():
            code = re.sub(rf"\b(?:127\.0\.0\.1|localhost):{declared}\b", f"127.0.0.1:{server.port}", code)
        state = self._state(terminal)
        script = f'set -eo pipefail\n. "{state}"\n{code}\n'
        environment = {**self._environment, "TERMINAL": str(state)}
        return {"args": ["bash", "-c", script], "env": environment, "cwd": self.home, "stdin": subprocess.DEVNULL}

    def _type(self, code: str, terminal: int) -> str:
        typed = self._bash(f"{code}\n{KEEP}", terminal)
        done = subprocess.run(**typed, capture_output=True, timeout=PATIENCE_S)
        said, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert done.returncode == 0, f"{code}\nended with {done.returncode}:\n{said}{errors}"
        return self._as_on_page(said)

    def _serve(self, line: str) -> None:
        named = PORT.search(line)
        declared = named[1] if named else "8000"
        if declared in self._servers:
            self._servers.pop(declared).interrupt()
        command = HOST.sub("", PORT.sub("", line.partition(" #")[0])).rstrip(" &")
        log = self.home.parent / f"server_{len(list(self.home.parent.glob('server_*')))}"
        port = free_port()
        server = Server(port, log, **self._bash(f"{command} --port {port}", 1))
        self._servers[declared] = server
        until(server.listens, line)

    def _as_on_page(self, text: str) -> str:
        for declared, server in self._servers.items():
            text = text.replace(f":{server.port}", f":{declared}")
        return text.replace("\r\n", "\n")
