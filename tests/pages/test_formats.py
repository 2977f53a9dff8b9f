"""The regular expressions and the filters of jq that pages show read what their publishers write.

`formats.txt` has the lines and the JSON of the publishers' own pages, with addresses of documentation.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slidegate import Networks
from slidegate.ops.replay.logs import AccessLogs

from ..test_docs import ROOT

WRITTEN = dict(
    re.findall(r"^== (.+)\n((?:(?!== ).*\n)+)", Path(__file__).with_name("formats.txt").read_text(), re.MULTILINE)
)
COMMAND, BANS = ((ROOT / "docs/guides" / page).read_text() for page in ("command.md", "bans.md"))
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
