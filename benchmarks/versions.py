"""The versions of slidegate that a benchmark measures alternately: the source, and with `--other` a second one.

For `--other compiled`, `dev.py bench` first builds the wheel of this checkout; other values are checkouts or wheels.
"""

from __future__ import annotations

import os
import zipfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def version_at(text: str) -> Path:
    """Return a wheel, or the `src` of a checkout.

    Raises:
        ArgumentTypeError: `text` is neither.
    """
    built = list((ROOT / ".cache" / "compiled").glob("*.whl")) if text == "compiled" else []
    path = built[0] if len(built) == 1 else Path(text).resolve()
    if path.suffix == ".whl" and path.is_file():
        return path
    if (path / "src" / "slidegate" / "__init__.py").is_file():
        return path / "src"
    raise ArgumentTypeError(f"expected a checkout, a wheel or `compiled`, not {text!r}")


def arguments(parser: ArgumentParser) -> None:
    """Add the flag for a second version."""
    parser.add_argument("--other", type=version_at, help="a checkout, a wheel, or `compiled`: the wheel of this one")


@contextmanager
def chosen(options: Namespace) -> Iterator[dict[str, Path]]:
    """Yield the directories of the versions by name ("source", "wheel" or "other"), with a wheel unpacked."""
    folders = {"source": ROOT / "src"}
    with TemporaryDirectory() as unpacked:
        if options.other and options.other.suffix == ".whl":
            zipfile.ZipFile(options.other).extractall(unpacked)
            folders["wheel"] = Path(unpacked).resolve()
        elif options.other:
            folders["other"] = options.other
        yield folders


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports slidegate from `folder`, and the benchmarks."""
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def check(found: str, folder: Path) -> None:
    """Check that a process imported slidegate from the expected directory.

    Args:
        found: The directory of the imported package.
        folder: The expected parent directory.

    Raises:
        SystemExit: The package is located elsewhere.
    """
    if Path(found) != folder / "slidegate":
        raise SystemExit(f"expected slidegate from {folder}, but {found} was measured")
