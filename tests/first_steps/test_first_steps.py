"""The README's first screen and the page that continues it, typed command by command beside a fresh checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..pages.blocks import Block, blocks, varying
from ..pages.shell import SERVER, Shell
from ..redis_servers import until

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
FIRST_SCREEN = (ROOT / "README.md").read_text("utf-8").partition("\n## ")[0]
FIRST_STEPS = (ROOT / "docs" / "first_steps.md").read_text("utf-8")
OUTPUT = {"text", "http", "json"}
ASK_S = 120
"""How long a question to the package index may take."""


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
    """Return whether pip finds the package that builds slidegate."""
    ask = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--timeout", "15", "--retries", "1"]
    try:
        answer = subprocess.run(
            [sys.executable, *ask, "--dest", str(checkout), "hatchling"], capture_output=True, timeout=ASK_S
        )
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0


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
