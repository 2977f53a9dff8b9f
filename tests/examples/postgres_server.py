"""A real PostgreSQL server for tests, with a cluster of its own in a temporary folder.

    with PostgresServer() as server:
        server.conninfo                # of its only database
        server.kill(), server.start()  # as by a crash: what was not on the disk is lost

It listens at a Unix socket alone. `initdb` and `postgres` refuse root, so then the user `nobody` runs them. Programs
are looked for on PATH and where Debian puts them: `POSTGRES` is None where there are none. A test that needs them
carries the mark `needs_postgres`, which skips it; with CI=true it fails.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import pytest

BOUND_S: Final = 60
DRIVER: Final = find_spec("psycopg") is not None


def find() -> Path | None:
    """Return the folder of the newest programs."""
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True
    )
    on_path = shutil.which("initdb")
    folders = [*installed, *([Path(on_path).parent] if on_path else [])]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


POSTGRES: Final = find()
MISSING: Final = "install PostgreSQL (apt-get install postgresql)" if DRIVER else "psycopg has no wheel for this Python"
needs_postgres: Final = pytest.mark.skipif(
    not DRIVER or (POSTGRES is None and os.environ.get("CI") != "true"), reason=MISSING
)


class PostgresServer:
    """One server process, started when entered."""

    def __init__(self) -> None:
        assert POSTGRES is not None, MISSING
        self.programs = POSTGRES
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.conninfo = f"host={self.folder} dbname=postgres user=slidegate"
        self.as_user: dict[str, Any] = {}
        if os.name == "posix" and os.geteuid() == 0:
            self.as_user = {"user": "nobody", "extra_groups": ()}
            shutil.chown(self.folder, "nobody")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        initdb = self.programs / "initdb"
        made = [initdb, "--no-sync", "--auth=trust", "--username=slidegate", "--encoding=UTF8", "--locale=C"]
        subprocess.run([*made, self.folder / "data"], check=True, capture_output=True, cwd=self.folder, **self.as_user)
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {"listen_addresses": "", "unix_socket_directories": self.folder, "fsync": "off"}
        given = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            command = [self.programs / "postgres", "-D", self.folder / "data", *given]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self.as_user)
        deadline_s = time.monotonic() + BOUND_S
        asks = [self.programs / "pg_isready", "--quiet", "--host", self.folder]
        while subprocess.run(asks).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it with its connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # what `pg_ctl stop -m immediate` sends
            self._process.wait(BOUND_S)
            self._process = None
