"""Figures of one run, with what they depend on: saved in benchmarks/figures as NAME.json."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from .tables import Table

FOLDER: Final = Path(__file__).resolve().parents[1] / "figures"
INNERMOST: Final = re.compile(r"\[[^\[\]{}]*\]")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run of a benchmark measured.

    Attributes:
        command: What was typed; a reader may type it again.
        date: The day, in UTC.
        machine: Its cores, its load before the run, and the kind of its processor.
        versions: The versions of Python and of the packages that were measured.
        tables: The tables, in the order of the page.
    """

    command: str
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    tables: list[Table]

    def markdown(self) -> str:
        """Return all tables, and a closing sentence about the run."""
        return "\n\n".join([*(table.markdown() for table in self.tables), self.closing()])

    def closing(self) -> str:
        """Say how, when and where this was measured; the versions of packages stand in the file."""
        busy = f", load {self.machine['load']:g}" if self.machine.get("load") is not None else ""
        python, version = next(iter(self.versions.items()))
        return f"`{self.command}`, {self.date}, {self.machine['cores']} cores{busy}, {python} {version}."

    def number(self, row: str, column: str) -> float | None:
        """Return a number by the name of its row, which is in one table alone, and its column; None where it is not."""
        found = [table.number(row, column) for table in self.tables]
        return next((number for number in found if number is not None), None)


def machine() -> dict[str, Any]:
    """Describe this machine; call it before the run, which is a load itself."""
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {"cores": os.cpu_count(), "architecture": platform.machine(), "load": load}


def figures(command: str, ran_on: dict[str, Any], packages: Sequence[str], tables: list[Table]) -> Figures:
    """Return the figures of a run that has just ended; a package that is not installed was not measured."""
    versions = {platform.python_implementation(): platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return Figures(command, f"{datetime.now(UTC):%Y-%m-%d}", ran_on, versions, tables)


def save(name: str, found: Figures, folder: Path = FOLDER) -> None:
    """Write the figures of a benchmark over those of its last run."""
    text = json.dumps(asdict(found), indent=1, ensure_ascii=False)
    # One row of a table is one line, so that a change of a figure is a change of a line.
    text = INNERMOST.sub(lambda row: re.sub(r"\n\s*", " ", row[0]), text)
    (folder / f"{name}.json").write_text(text + "\n", "utf-8")


def load(name: str, folder: Path = FOLDER) -> Figures:
    """Read what was saved.

    Raises:
        FileNotFoundError: Nothing was.
    """
    found = json.loads((folder / f"{name}.json").read_text("utf-8"))
    tables = [Table.of_json(table) for table in found.pop("tables")]
    return Figures(**found, tables=tables)
