"""Build the source distribution, and the wheel from it, into dist/, and check them; nothing is uploaded.

Both are built twice, as is the compiled wheel of this system if there is a C compiler. The two builds must be identical
to the byte, so that anyone can verify that the files of a release were built from the source. The compiled wheel is
not kept: `python3 dev.py wheels` builds those of a release.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts import compile_wheel

ROOT = Path(__file__).resolve().parents[1]


def tool(module: str, *arguments: object) -> None:
    """Run a tool of this environment."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **compile_wheel.EPOCH}, check=True)


def pure(place: Path) -> None:
    """Build the source distribution and the pure wheel."""
    tool("build", "--no-isolation", "--outdir", place)


def twice(build: Callable[[Path], None], place: Path) -> list[Path]:
    """Build into a directory and again into a temporary one; return the files, a wheel first.

    Raises:
        SystemExit: The two builds differ.
    """
    build(place)
    files = sorted(place.iterdir(), key=lambda path: path.suffix, reverse=True)
    with TemporaryDirectory(prefix="slidegate-") as again:
        build(Path(again))
        for file in files:
            if not filecmp.cmp(file, Path(again, file.name), shallow=False):
                raise SystemExit(f"{file.name} is not reproducible: a second build differs")
    for file in files:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}", flush=True)
    return files


def release(into: Path) -> None:
    """Empty a directory, build the pure files of a release into it, and check them."""
    shutil.rmtree(into, ignore_errors=True)
    files = twice(pure, into)
    tool("twine", "check", "--strict", *files)
    tool("check_wheel_contents", files[0])


def can_compile() -> bool:
    """Return whether a C compiler and the headers of Python are installed."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return bool(shutil.which(compiler)) and Path(sysconfig.get_path("include"), "Python.h").is_file()


def main() -> None:
    """Build and check everything that this machine can build."""
    release(ROOT / "dist")
    if can_compile():
        with TemporaryDirectory(prefix="slidegate-") as place:
            twice(compile_wheel.build, Path(place))
    else:
        print("the compiled wheel was not built: it requires a C compiler and the headers of Python")


if __name__ == "__main__":
    main()
