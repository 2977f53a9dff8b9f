"""A file is read whole or not at all, and nothing that a name leads to holds the reader up."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from slidegate import ConfigurationError, Networks, RateLimitMiddleware
from slidegate.web import file_watcher
from slidegate.web.file_watcher import read_whole


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless_link(path: Path) -> None:
    path.symlink_to(path.name)


def long_way(path: Path) -> None:
    for number in range(100):
        path.with_name(f"{path.name}.{number}").symlink_to(f"{path.name}.{number + 1}")
    path.symlink_to(f"{path.name}.0")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def directory(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # it takes no place on the disk


def nothing(path: Path) -> None:
    """Leave the name to nobody."""


SNARES = (pipe, endless_link, long_way, device, listener, directory, huge, nothing)


def read_list(path: Path) -> object:
    return Networks.from_file(path)


def read_configuration(path: Path) -> object:
    return RateLimitMiddleware.from_file(lambda scope, receive, send: None, path)  # type: ignore[arg-type,return-value]


def read_configuration_with_list(path: Path) -> object:
    made = path.with_name("made.toml")
    made.write_text(f'limits = "1/s"\nblocklist = "{path.name}"\n')
    return read_configuration(made)


READERS = (read_list, read_configuration, read_configuration_with_list)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.parametrize("snare", SNARES)
@pytest.mark.parametrize("read", READERS)
def test_whatever_a_name_leads_to_is_an_error_at_once(
    read: Callable[[Path], object], snare: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "given"
    snare(path)
    with pytest.raises(ConfigurationError, match="given"):
        read(path)


@pytest.mark.parametrize("read", READERS[:2])
def test_a_name_with_a_nul_is_an_error_like_any_other(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="null"):
        read(tmp_path / "a\0b")


def test_the_size_is_bounded_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(b"x" * 1_048_576)
    assert read_whole(path, 1 << 20) == b"x" * 1_048_576
    path.write_bytes(b"x" * 1_048_577)
    with pytest.raises(ConfigurationError, match="expected at most 1 MiB, and it has more"):
        read_whole(path, 1 << 20)


@pytest.mark.parametrize(("read", "most"), [(read_list, 32 << 20), (read_configuration, 2 << 20)])
def test_what_is_larger_than_any_that_is_meant_is_not_read(
    read: Callable[[Path], object], most: int, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(most + 1)
    with pytest.raises(ConfigurationError, match=f"large.*expected at most {most >> 20} MiB, and it has more"):
        read(path)


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some"
    path.write_text("192.0.2.0/24\n")
    fstat = os.fstat
    asked = 0

    def writes_between(number: int) -> os.stat_result:
        nonlocal asked
        asked += 1
        if asked == 2:
            with path.open("a") as file:
                file.write("198.51.100.0/24\n")
        return fstat(number)

    monkeypatch.setattr(file_watcher.os, "fstat", writes_between)
    with pytest.raises(ConfigurationError, match="some, networks: it changes while it is read"):
        Networks.from_file(path)
