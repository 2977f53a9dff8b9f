"""The expressions and filters of other programs that pages show read what their publishers, or the page's code, write.

`formats.txt` has the lines and the JSON of the publishers' own pages, with addresses of documentation.
"""

import ast
import asyncio
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slidegate import Limiter, Networks
from slidegate.ops.replay.logs import AccessLogs

from ..test_docs import ROOT
from .blocks import blocks

WRITTEN = dict(
    re.findall(r"^== (.+)\n((?:(?!== ).*\n)+)", Path(__file__).with_name("formats.txt").read_text(), re.MULTILINE)
)
COMMAND, BANS = ((ROOT / "docs/guides" / page).read_text("utf-8") for page in ("command.md", "bans.md"))
EXPRESSIONS = re.findall(r"^\| (.+) \| `(.*\(\?P<.*)` \|$", COMMAND, re.MULTILINE)
FILTERS = re.findall(r"^(jq -r '.+') \S+ > (\w+)\.txt", BANS, re.MULTILINE)


def test_each_line_that_the_pages_show_has_its_example() -> None:
    assert sorted(WRITTEN) == sorted([name for name, _ in EXPRESSIONS] + [name for _, name in FILTERS])


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_a_log_is_read_by_its_expression(name: str, expression: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(WRITTEN[name])
    [record] = AccessLogs([str(log)], expression)
    assert (record.client, record.method, record.status) == ("192.0.2.39", "GET", 200)
    assert record.path.partition("?")[0].endswith("/a")
    assert record.time_us // 1_000_000 == 1_530_570_180


@pytest.mark.skipif(not shutil.which("jq"), reason="needs jq")
@pytest.mark.parametrize(("filter_", "name"), FILTERS)
def test_a_list_is_read_after_its_filter(filter_: str, name: str, tmp_path: Path) -> None:
    found = subprocess.run(filter_, shell=True, input=WRITTEN[name], capture_output=True, text=True, check=True).stdout
    (tmp_path / "list.txt").write_text(found)
    networks = Networks.from_file(tmp_path / "list.txt")
    assert len(networks) == 2
    assert "192.0.2.9" in networks
    assert "2001:db8::9" in networks


SUBNET = r"(?P<ip>\d+\.\d+\.\d+\.\d+(?:/\d+)?|[0-9a-f]*:[0-9a-f:]*(?:/\d+)?)"
"""What fail2ban's <SUBNET> stands for, where it is not installed."""
DATE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")


def written_by(code: str) -> list[str]:
    """Run the code of the page, and return the lines of its file."""
    compiled = compile(code, "bans.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    try:
        asyncio.run(eval(compiled, {"limiter": Limiter()}))
        return Path("banned.log").read_text("utf-8").splitlines()
    finally:
        for handler in [*logging.getLogger("banned").handlers]:
            logging.getLogger("banned").removeHandler(handler)
            handler.close()


def test_the_filter_finds_the_banned_addresses_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = BANS.partition("\n## Bans in a firewall\n")[2].partition("\n## ")[0]
    code, rules = blocks(section)
    lines, banned = written_by(code.code), ["203.0.113.9", "2001:db8::/64"]
    assert len(lines) == len(banned) + 1
    (failregex,) = re.findall("^failregex = (.+)$", rules.code, re.MULTILINE)
    pattern = re.compile(failregex.replace("<SUBNET>", SUBNET))
    assert [found["ip"] for found in map(pattern.search, (DATE.sub("", line) for line in lines)) if found] == banned
    if program := shutil.which("fail2ban-regex"):
        (tmp_path / "slidegate.conf").write_text(rules.code, "utf-8")
        command = [program, "-o", "ip", str(tmp_path / "banned.log"), str(tmp_path / "slidegate.conf")]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == banned
