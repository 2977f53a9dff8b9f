"""The README's application refuses as it shows, and the list of examples is complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
HEADING = "## Four workers, one limit, no Redis"
QUICK_START = README.partition(HEADING)[2].partition("\n## ")[0]


async def test_the_application_that_it_shows_refuses_with_the_fields_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", QUICK_START, re.DOTALL)
    (head,) = re.findall(r"```http\n(.*?)```", QUICK_START, re.DOTALL)
    module: dict[str, Any] = {}
    exec(code, module)
    app = module["app"]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app.test") as client:
        answers = [await client.get("/") for _ in range(6)]
    await module["limiter"].close()
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    sent = {f"{name}: {value}" for name, value in answers[-1].headers.items()}
    shown = [line for line in head.splitlines()[1:] if line != "..."]
    assert shown == [line for line in shown if line.replace("58", "60") in sent]


def test_every_example_with_a_page_of_its_own_stands_in_the_list_with_its_command() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\((\w+)/README\.md\) \| .+ \| `python3 dev\.py (?:example )?(\w+)` \|$",
        (ROOT / "examples" / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    pages = {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}
    runnable = {name for name in pages if (ROOT / "examples" / name / "__main__.py").exists()}
    assert {name for name, _, _ in rows} == runnable
    assert all(len(set(row)) == 1 for row in rows)
    for name in runnable - {"demo"}:
        assert f"python3 dev.py example {name}" in (ROOT / "examples" / name / "README.md").read_text("utf-8")
