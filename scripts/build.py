"""Build the source distribution, and the wheel out of it, into dist/, and check them; nothing is uploaded.

Both are built twice, and so is the compiled wheel of this system, where there is a C compiler. The two builds have to
be the same to the byte, so whoever has the source can tell that a file of a release was made of it. The compiled wheel
is not kept: `python3 dev.py wheels` makes those of a release.
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
    """Run a tool of this environment, which says why where it fails."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **compile_wheel.EPOCH}, check=True)


def pure(place: Path) -> None:
    """Build the source distribution and the pure wheel."""
    tool("build", "--no-isolation", "--outdir", place)


def twice(build: Callable[[Path], None], place: Path) -> list[Path]:
    """Build into a directory and once more elsewhere; return the files, a wheel first.

    Raises:
        SystemExit: The second build is not the first one.
    """
    build(place)
    files = sorted(place.iterdir(), key=lambda path: path.suffix, reverse=True)
    with TemporaryDirectory(prefix="slidegate-") as again:
        build(Path(again))
        for file in files:
            if not filecmp.cmp(file, Path(again, file.name), shallow=False):
                raise SystemExit(f"{file.name} is another one when it is built again")
    for file in files:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}", flush=True)
    return files


def release(into: Path) -> None:
    """Build the pure files of a release into a directory, which is emptied, and check them."""
    shutil.rmtree(into, ignore_errors=True)
    files = twice(pure, into)
    tool("twine", "check", "--strict", *files)
    tool("check_wheel_contents", files[0])


def can_compile() -> bool:
    """Return whether there are a C compiler and the headers of Python."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return bool(shutil.which(compiler)) and Path(sysconfig.get_path("include"), "Python.h").is_file()


def main() -> None:
    """Build and check everything that this machine can build."""
    release(ROOT / "dist")
    if can_compile():
        with TemporaryDirectory(prefix="slidegate-") as place:
            twice(compile_wheel.build, Path(place))
    else:
        print("the compiled wheel was not built: that needs a C compiler and the headers of Python")


if __name__ == "__main__":
    main()
