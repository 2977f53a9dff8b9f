"""The versions of slidegate that a benchmark measures in turn: the source, its compiled wheel, or any other.

`--own` names the first, by default the source of this checkout, and `--other` a second one. Each is a checkout, a
folder with slidegate in it, or a wheel; `compiled` is the wheel that `dev.py bench` builds of this checkout first.
"""

from __future__ import annotations

import os
import zipfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
COMPILED: Final = ROOT / ".cache" / "compiled"


def version_at(text: str) -> Path:
    """Return a wheel, or a folder with slidegate in it.

    Raises:
        ArgumentTypeError: There is none.
    """
    built = list(COMPILED.glob("*.whl")) if text == "compiled" else []
    path = built[0] if len(built) == 1 else Path(text).resolve()
    if path.suffix == ".whl" and path.is_file():
        return path
    for folder in (path / "src", path):
        if (folder / "slidegate" / "__init__.py").is_file():
            return folder
    raise ArgumentTypeError(f"{text!r} is no checkout, no folder with slidegate in it, and no wheel")


def arguments(parser: ArgumentParser) -> None:
    """Add the flags that choose versions."""
    kinds = "a checkout, a folder with slidegate in it, a wheel, or `compiled`: the wheel of this checkout"
    version: dict[str, Any] = {"type": version_at, "metavar": "PATH"}
    parser.add_argument("--own", default=ROOT / "src", help=f"the version that is measured: {kinds}", **version)
    parser.add_argument("--other", help="another one, measured in turn with it", **version)


@contextmanager
def chosen(options: Namespace) -> Iterator[dict[str, Path]]:
    """Yield the folders of the chosen versions by their names, with wheels unpacked: "source", "wheel" or "other"."""
    folders: dict[str, Path] = {}
    with TemporaryDirectory() as unpacked:
        for path in filter(None, (options.own, options.other)):
            name = "wheel" if path.suffix == ".whl" else "source"
            if name in folders:
                name = "other"
            folders[name] = path
            if path.suffix == ".whl":
                folders[name] = Path(unpacked, name).resolve()
                zipfile.ZipFile(path).extractall(folders[name])
        yield folders


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds slidegate in a folder, and the benchmarks."""
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def check(found: str, folder: Path) -> None:
    """Check that a process has found slidegate where it should.

    Args:
        found: Where its package lies.
        folder: Where it should lie.

    Raises:
        SystemExit: It lies elsewhere.
    """
    if Path(found) != folder / "slidegate":
        raise SystemExit(f"expected slidegate from {folder}, and {found} was measured")
