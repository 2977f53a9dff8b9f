"""A client that is generated from the documented limits understands the refusals."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from slidegate import RateLimitMiddleware, Rule, document_limits


def shop() -> FastAPI:
    app = FastAPI(title="Shop")
    app.add_middleware(RateLimitMiddleware, rules=[Rule("/items/{number}", "2/hour", name="items")])

    @app.get("/items/{number}")
    async def item(number: int) -> dict[str, int]:
        return {"number": number}

    document_limits(app)
    return app


@pytest.fixture
def shop_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "openapi.json").write_text(json.dumps(shop().openapi()), "utf-8")
    (tmp_path / "config.yml").write_text("post_hooks: []\n", "utf-8")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", "openapi.json"]
    command += ["--config", "config.yml", "--output-path", "generated"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(tmp_path / "generated"))
    return importlib.import_module("shop_client")


async def test_a_generated_client_reads_the_refusal_as_what_it_is(shop_client: Any) -> None:
    operation = importlib.import_module("shop_client.api.default.item_items_number_get")
    transport = httpx.ASGITransport(app=shop())
    client = shop_client.Client(base_url="http://shop.test", httpx_args={"transport": transport})
    answers = [await operation.asyncio_detailed(number, client=client) for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    refusal = answers[-1].parsed
    assert type(refusal).__name__ == "RateLimitProblem"
    assert (refusal.status, refusal.violated_policies) == (429, ["items"])
    assert answers[-1].headers["retry-after"] == "3600"
