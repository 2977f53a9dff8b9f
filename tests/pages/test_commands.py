"""The commands that pages show work, as a reader would type them, and their Python passes ``mypy --strict``.

Commands find nothing of this machine but a few tools and Python, and what pages take for granted: an application, a
configuration, logs, a store. They are typed into bash, and servers run until another one takes their port. A server
gets a free port in the place of the one that the page names, in what is typed and in what is said.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from slidegate.stores.open_store import open_store

from ..redis_servers import free_port, until
from ..test_docs import PAGES, ROOT, RUN_HERE, page_name
from ..workers import TESTED
from .blocks import SHELL, Block, blocks, varying

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


pytestmark = pytest.mark.all

TOOLS: Final = (
    *("bash", "cat", "cp", "curl", "cut", "date", "env", "false", "grep", "gzip", "head", "ls", "mkdir", "mv", "rm"),
    *("sed", "seq", "sleep", "sort", "tail", "tee", "touch", "tr", "true", "uniq", "wc", "zcat"),
)
MODULES: Final = ("slidegate", "uvicorn", "pytest", "hypercorn", "granian")
"""Commands that are `python -m` of the same name."""


def typed(block: Block) -> str:
    """Return the lines of a block that a reader types."""
    if block.language == "bash":
        return block.code
    lines = block.code.replace("\\\n", " ").splitlines(keepends=True)
    return "".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))


def does_something(block: Block) -> bool:
    """Tell whether a block has commands that are not the business of another test."""
    others = ("pip install", "python3 dev.py", "#")
    return (
        block.language in SHELL
        and block.mark != "not run"
        and not all(line.startswith(others) for line in typed(block).splitlines() if line.strip())
    )


def fill(directory: Path) -> None:
    """Make the directories with the programs, and with the files, that the reader of a page has."""
    programs, work = directory / "bin", directory / "work"
    programs.mkdir()
    work.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (programs / tool).symlink_to(found)
    scripts = {name: f'exec "{sys.executable}" -m {name} "$@"' for name in MODULES}
    # Which extras there are is the business of a test of its own, and nothing is to be fetched.
    scripts |= dict.fromkeys(("python", "python3"), f'exec "{sys.executable}" "$@"') | {"pip": "exit 0"}
    for name, line in scripts.items():
        (programs / name).write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    lines = (ROOT / "examples" / "demo" / "sample.log").read_bytes().splitlines(keepends=True)
    (work / "access.log").write_bytes(b"".join(lines[500:1500]))
    (work / "access.log.1.gz").write_bytes(gzip.compress(b"".join(lines[:500])))
    details = {"key": "203.0.113.7", "rule": "everybody"}
    event = {"kind": "refused", "time_us": 1_700_000_000_000_000, "details": details}
    (work / "events.jsonl").write_text(f"{json.dumps(event)}\n", encoding="utf-8")
    for block in blocks((ROOT / "README.md").read_text("utf-8")):
        if block.mark == "file":
            (work / block.value).write_text(block.code, encoding="utf-8")
    (work / "slidegate.toml").write_text('limits = "600/minute"\n', encoding="utf-8")
    # The commands of the project's own script have tests of their own, which also look at their names.
    (work / "dev.py").write_text('"""Stands in the place of the script that sets up environments."""\n')
    (work / "examples").symlink_to(ROOT / "examples")


WITH_COMMANDS = [page for page in RUN_HERE if any(map(does_something, blocks(page.read_text("utf-8"))))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)
def test_commands_on_the_page_run_in_its_order(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    if "curl " in text and not shutil.which("curl"):
        pytest.skip("no curl on PATH: sudo apt install curl")
    work, lib = tmp_path / "work", tmp_path / "lib"
    fill(tmp_path)
    lib.mkdir()
    if "lmdb" in text:
        open_store(f"lmdb://{lib}/slidegate").close()
    paths = {"PATH": str(tmp_path / "bin"), "PYTHONPATH": os.pathsep.join((str(TESTED), str(ROOT)))}
    replaced = {"/var/lib/app": str(lib), "/var/log/nginx": str(work)}
    shell = Shell(work, {**paths, "LANG": "C.UTF-8"}, replaced)
    try:
        for block in blocks(text):
            if block.mark == "file":
                shell.write(block.value, block.code)
            elif does_something(block):
                shell.run(typed(block))
    finally:
        shell.close()


# -- the Python of the pages -------------------------------------------------------------------------------------------


# Pages await outside of functions, as tests/test_docs.py runs them; it also finds errors of syntax.
# Errors of what they import are the business of other checks.
OPTIONS: Final = (
    *("--strict", "--follow-imports=silent"),
    *("--disable-error-code=top-level-await", "--disable-error-code=syntax"),
)


def modules_of(page: Path) -> dict[str, str]:
    """Return the modules that the Python of a page makes: a single one, or the files that its reader saves."""
    modules: dict[str, str] = {}
    for block in blocks(page.read_text("utf-8")):
        if block.language == "python":
            saved = block.mark == "file" and page not in RUN_HERE
            before = "" if saved else modules.get("page.py", "")
            # As many empty lines as the page has above the block, so that mypy names the lines of the page.
            empty = "\n" * (block.line - before.count("\n"))
            modules[block.value if saved else "page.py"] = before + empty + block.code
    return modules


def test_the_python_of_every_page_passes_mypy_strict(tmp_path: Path) -> None:
    packages = []
    for page in PAGES:
        if modules := modules_of(page):
            # A package of its own: several pages have a `main.py`.
            packages.append(re.sub(r"\W", "_", page_name(page)))
            siblings = "|".join(Path(name).stem for name in modules)
            (tmp_path / packages[-1]).mkdir()
            for name, code in {**modules, "__init__.py": ""}.items():
                code = re.sub(rf"^from (?=(?:{siblings}) import )", "from .", code, flags=re.MULTILINE)
                (tmp_path / packages[-1] / name).write_text(code, encoding="utf-8")
    command = (sys.executable, "-m", "mypy", *OPTIONS, f"--cache-dir={tmp_path / '.cache'}", *packages)
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert ended.returncode in (0, 1), ended.stderr
    errors = [line for line in ended.stdout.splitlines() if ": error: " in line]
    assert not errors, "\n".join(errors)


# -- the first screen of the README and the page that continues it, beside a fresh checkout ----------------------------


FIRST_SCREEN = (ROOT / "README.md").read_text("utf-8").partition("\n## ")[0]
FIRST_STEPS = (ROOT / "docs" / "first_steps.md").read_text("utf-8")
OUTPUT = {"text", "http", "json"}


def environment(programs: Path) -> dict[str, str]:
    """Return the environment of a newcomer: this Python is `python3`, and nothing of this run is set."""
    programs.mkdir()
    # A script and no link: it finds its library wherever it is called from.
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec "{Path(sys._base_executable).resolve()}" "$@"\n', "utf-8")  # type: ignore[attr-defined]
    python.chmod(0o755)
    ours = ("PIP_", "SSL_", "REQUESTS_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(ours)}
    return {**kept, "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}


def index_answers(checkout: Path) -> bool:
    """Return whether pip finds the package that builds slidegate, within two minutes."""
    ask = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--timeout", "15", "--retries", "1"]
    command = [sys.executable, *ask, "--dest", str(checkout), "hatchling"]
    try:
        return subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def shape(text: str) -> str:
    """Return a pattern for texts that differ from `text` in their digits and letters alone."""
    parts = re.findall(r"\d+|[A-Za-z]+|.", text, re.DOTALL)
    return "".join(r"\d+" if part.isdigit() else "[A-Za-z]+" if part.isalpha() else re.escape(part) for part in parts)


def pattern(output: Block) -> re.Pattern[str]:
    """Return what the output has to match: a line of `...` is any lines, and parts that vary keep their shape."""
    whole, varies = "", varying(output)
    for line in output.code.splitlines():
        if line.strip() == "...":
            whole += r"(?:.*\n)*?"
            continue
        for part in re.split(f"({'|'.join(map(re.escape, varies))})", line.rstrip()) if varies else [line.rstrip()]:
            whole += shape(part) if part in varies else re.escape(part)
        whole += r"[ \t]*\n"
    return re.compile(whole + r"\s*")


def follow(page: list[Block], shell: Shell) -> None:
    """Save the files of a page, type its commands, and compare what they say with the text behind them."""
    for block, behind in zip(page, [*page[1:], None], strict=True):
        if block.mark == "file":
            shell.write(block.value, block.code)
        elif block.language == "bash":
            said = shell.run(block.code)
            if behind is None or behind.language not in OUTPUT:
                continue
            if SERVER.match(block.code.splitlines()[-1]):
                until(lambda behind=behind: pattern(behind).match(shell.said()), behind.code)
            else:
                assert pattern(behind).fullmatch(said.rstrip() + "\n"), f"line {block.line}: {behind.code}\n{said}"
        else:
            assert block.language in OUTPUT, f"line {block.line}: a {block.language} block that nobody saves or types"


def test_the_readme_and_then_the_first_steps_work_command_by_command(tmp_path: Path) -> None:
    if os.environ.get("CI") != "true" and not index_answers(tmp_path / "answer"):
        pytest.skip("no package index answers, and the pages install from one")
    checkout = tmp_path / "checkout"
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()]
    shutil.copytree(ROOT, checkout / "slidegate", ignore=shutil.ignore_patterns(".git", *ignored))
    hello = checkout / "hello"
    hello.mkdir()
    shell = Shell(hello, environment(tmp_path / "programs"), terminals=2)
    try:
        follow([*blocks(FIRST_SCREEN)], shell)
        follow([*blocks(FIRST_STEPS)], shell)
    finally:
        shell.close()
