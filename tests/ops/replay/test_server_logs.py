"""The access logs that uvicorn, hypercorn and granian really write are read."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from slidegate.ops.replay import AccessRecord
from slidegate.ops.replay.logs import NO_TIME, parse_line

from ...redis_servers import BOUND_S, free_port, until

pytestmark = pytest.mark.all
APP = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})
"""
FORMAT = '%(asctime)s %(client_addr)s - "%(request_line)s" %(status_code)s'
"""The format that the error about a log of uvicorn without times shows."""
LOG_CONFIG = {
    "version": 1,
    "formatters": {"access": {"()": "uvicorn.logging.AccessFormatter", "fmt": FORMAT}},
    "handlers": {"access": {"class": "logging.StreamHandler", "formatter": "access"}},
    "loggers": {"uvicorn.access": {"handlers": ["access"], "level": "INFO"}},
}
COMMANDS = {
    "uvicorn": ["uvicorn", "--port", "PORT"],
    "uvicorn with times": ["uvicorn", "--port", "PORT", "--log-config", "log.json"],
    "hypercorn": ["hypercorn", "--bind", "127.0.0.1:PORT", "--access-logfile", "-"],
    "granian": ["granian", "--interface", "asgi", "--port", "PORT", "--access-log"],
}


@pytest.mark.parametrize("server", COMMANDS)
def test_the_access_log_of_a_server_is_read_or_lacks_its_time(server: str, tmp_path: Path) -> None:
    before_us = (int(time.time()) - 1) * 1_000_000
    (tmp_path / "served_app.py").write_text(APP)
    (tmp_path / "log.json").write_text(json.dumps(LOG_CONFIG))
    port, out = free_port(), tmp_path / "out"
    module, *arguments = (word.replace("PORT", str(port)) for word in COMMANDS[server])
    command = [sys.executable, "-m", module, "served_app:app", *arguments]

    def is_logged() -> bool:
        with suppress(httpx.TransportError):  # it does not listen yet
            httpx.get(f"http://127.0.0.1:{port}/seen", headers={"user-agent": 'odd "agent"'}, timeout=BOUND_S)
        return "/seen" in out.read_text()

    with out.open("w") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file) as process:
        try:
            until(is_logged, "the server logs a request")
        finally:
            process.terminate()
    found = [parse_line(text) for text in out.read_text().splitlines() if "/seen" in text]
    assert found
    for record in found:
        if server == "uvicorn":
            assert record == NO_TIME
            continue
        assert isinstance(record, AccessRecord), record
        assert (record.client, record.method, record.path, record.status) == ("127.0.0.1", "GET", "/seen", 404)
        if time.localtime().tm_gmtoff == 0 or server != "uvicorn with times":  # uvicorn logs local time without a zone
            assert before_us <= record.time_us <= (time.time() + 1) * 1_000_000
