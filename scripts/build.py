"""Build the source distribution, and the wheel out of it, into dist/; build both again, and check them.

The two builds have to be the same to the byte, so whoever has one file can tell that the other was made of it. Nothing
is uploaded.
"""

from __future__ import annotations

import filecmp
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]


def tool(module: str, *arguments: object) -> None:
    """Run a tool of this environment, which says why where it fails."""
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, check=True)


def build(place: Path) -> list[Path]:
    """Build both files of a release into a directory, and return them, the wheel first."""
    tool("build", "--no-isolation", "--outdir", place)
    return sorted(place.iterdir(), key=lambda path: path.suffix, reverse=True)


def main(into: Path = ROOT / "dist") -> None:
    """Build into a directory, which is emptied, and check."""
    shutil.rmtree(into, ignore_errors=True)
    files = build(into)
    tool("twine", "check", "--strict", *files)
    tool("check_wheel_contents", files[0])
    with TemporaryDirectory(prefix="slidegate-") as again:
        for file, second in zip(files, build(Path(again)), strict=True):
            if not filecmp.cmp(file, second, shallow=False):
                raise SystemExit(f"{file.name} is another one when it is built again")
    for file in files:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")


if __name__ == "__main__":
    main()
