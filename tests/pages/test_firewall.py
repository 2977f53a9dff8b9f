"""The filter of fail2ban that the page on bans shows reads what the code above it writes."""

import ast
import asyncio
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slidegate import Limiter

from .blocks import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "bans.md"
SUBNET = r"(?P<ip>\d+\.\d+\.\d+\.\d+(?:/\d+)?|[0-9a-f]*:[0-9a-f:]*(?:/\d+)?)"
"""What fail2ban's <SUBNET> stands for, where it is not installed."""
DATE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")


def written(code: str) -> list[str]:
    """Run the code of the page, and return the lines of its file."""
    compiled = compile(code, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    try:
        asyncio.run(eval(compiled, {"limiter": Limiter()}))
        return Path("banned.log").read_text("utf-8").splitlines()
    finally:
        for handler in [*logging.getLogger("banned").handlers]:
            logging.getLogger("banned").removeHandler(handler)
            handler.close()


def test_the_filter_finds_the_banned_addresses_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text("utf-8").partition("\n## Bans in a firewall\n")[2].partition("\n## ")[0]
    code, rules = blocks(section)
    lines, banned = written(code.code), ["203.0.113.9", "2001:db8::/64"]
    assert len(lines) == len(banned) + 1
    (failregex,) = re.findall("^failregex = (.+)$", rules.code, re.MULTILINE)
    pattern = re.compile(failregex.replace("<SUBNET>", SUBNET))
    assert [found["ip"] for found in map(pattern.search, (DATE.sub("", line) for line in lines)) if found] == banned
    if program := shutil.which("fail2ban-regex"):
        (tmp_path / "slidegate.conf").write_text(rules.code, "utf-8")
        command = [program, "-o", "ip", str(tmp_path / "banned.log"), str(tmp_path / "slidegate.conf")]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == banned
