"""The command and the stores that it is tested with."""

from pathlib import Path

import pytest

from slidegate.ops.cli import run

from ...redis_servers import needs_redis
from .command import Command, Ended, create_store


@pytest.fixture
def slidegate(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process."""

    def ran(*words: str) -> Ended:
        capsys.readouterr()
        code = run(words)
        return Ended(code, *capsys.readouterr())

    return ran


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=needs_redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an existing, empty store."""
    if request.param == "lmdb":
        return create_store(f"lmdb://{tmp_path}/store")
    server = request.getfixturevalue("server")
    server.command("FLUSHALL")
    return create_store(str(server.url))


@pytest.fixture
def lmdb_url(tmp_path: Path) -> str:
    """The address of an existing, empty LMDB store."""
    return create_store(f"lmdb://{tmp_path}/store")


@pytest.fixture(scope="module")
def lmdb_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an LMDB store for all examples of a property."""
    return create_store(f"lmdb://{tmp_path_factory.mktemp('of_examples')}/store")


@pytest.fixture(autouse=True)
def _no_store_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the store of the developer's environment."""
    monkeypatch.delenv("SLIDEGATE_STORE", raising=False)
