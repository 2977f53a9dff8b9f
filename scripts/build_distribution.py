"""Build the wheel and the source distribution into a directory, and check all that can be checked before a release.

Both are built from the checkout, and a second time from the source distribution: the files have to be the same to the
byte, so whoever has the one can tell that the other was made of it. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
LEFT_BEHIND = re.compile(
    r"(^|/)(__pycache__|\.git|\.(venv|cache|hypothesis|\w+_cache)[^/]*|site|dist|build|[^/]+\.egg-info)/"
    r"|\.(pyc|log|mdb|rdb|db|sqlite3?|jsonl|swp|orig|rej)$|(^|/)\.coverage"
)
"""What lies about in a checkout that is worked in: environments, caches, built pages, logs and data files."""
MEANT = ("examples/demo/sample.log", "tests/ops/samples/", "tests/stores/data/")
"""Logs and data files that belong to the project."""
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
"""What stands in a wheel beside the package."""


def build(place: Path, root: Path) -> tuple[Path, Path]:
    """Build the wheel and the source distribution of a checkout, and return the two files."""
    place.mkdir(parents=True, exist_ok=True)
    for target in ("wheel", "sdist"):
        command = (sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(place))
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"the {target} could not be built:\n{ended.stdout}{ended.stderr}")
    (wheel,) = place.glob("*.whl")
    (source,) = place.glob("*.tar.gz")
    return wheel, source


def unpack(source: Path, place: Path) -> Path:
    """Unpack a source distribution, and return its root."""
    with tarfile.open(source) as archive:
        archive.extractall(place, filter="data")
    (root,) = (path for path in place.iterdir() if path.is_dir())
    return root


def names_in(archive: Path) -> list[str]:
    """Return the files in a wheel, or those in a source distribution below its root."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as source:
        return [member.name.partition("/")[2] for member in source.getmembers() if not member.isdir()]


def strangers(names: Iterable[str]) -> list[str]:
    """Return the files that belong into no distribution."""
    return [name for name in names if LEFT_BEHIND.search(name) and not name.startswith(MEANT)]


def beside_the_package(names: Iterable[str], source: Path) -> list[str]:
    """Return what is in a wheel and not in `source`, the directory of the package, or the other way round."""
    there = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held, meta = set(), set()
    for name in names:
        inside = re.fullmatch(r"slidegate-[^/]+\.dist-info/(.+)", name)
        (meta.add(inside[1]) if inside else held.add(name))
    return sorted([*(held ^ there), *(meta ^ METADATA)])


def untracked(names: Iterable[str]) -> list[str]:
    """Return the files of a source distribution that git does not know, where there is a checkout of git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        return []
    return sorted({*names} - {*listed.stdout.split("\0")} - {"PKG-INFO"})


def problems(wheel: Path, source: Path) -> list[str]:
    """Return what is wrong with two built files, each in a sentence."""
    return [
        *(f"{wheel.name} holds {name}, or lacks it" for name in beside_the_package(names_in(wheel), ROOT / "src")),
        *(f"{source.name} holds {name}" for name in strangers(names_in(source))),
    ]


def differences(wheel: Path, source: Path) -> list[str]:
    """Build both again out of the source distribution, and name those that are not the same."""
    with TemporaryDirectory(prefix="slidegate-") as place:
        again = build(Path(place, "again"), unpack(source, Path(place)))
        pairs = zip((wheel, source), again, strict=True)
        return [
            f"{first.name} is another one when it is built from {source.name}"
            for first, second in pairs
            if first.read_bytes() != second.read_bytes()
        ]


def main(arguments: list[str] | None = None) -> int:
    """Build and check; return 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python3 dev.py build")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the directory, which is emptied (dist)")
    into: Path = parser.parse_args(arguments).into
    shutil.rmtree(into, ignore_errors=True)
    wheel, source = build(into, ROOT)
    found = [*problems(wheel, source), *differences(wheel, source)]
    found += [f"{source.name} holds {name}, which git does not know" for name in untracked(names_in(source))]
    if subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)]).returncode:
        found.append("twine refuses the metadata; the lines above say why")
    for problem in found:
        print(problem, file=sys.stderr)
    for file in (wheel, source):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
