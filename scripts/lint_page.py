"""Checks the scripts and the style sheet of the dashboard: ``python -m scripts.lint_page``; ``--write`` fixes them.

npm installs Biome, a linter and formatter, into .cache/, in the version of requirements/package.json; the binaries for
Linux with glibc are checked against the hashes in requirements/package-lock.json. Without node and npm, it prints a
notice and checks nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PINNED: Final = [ROOT / "requirements" / name for name in ("package.json", "package-lock.json")]


def main() -> int:
    """Run the check and return its exit code."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        print("no node and npm on PATH: the scripts of the dashboard are not checked")
        return 0
    home = ROOT / ".cache" / f"biome-{hashlib.sha256(PINNED[1].read_bytes()).hexdigest()[:12]}"
    program = home / "node_modules" / ".bin" / ("biome.cmd" if sys.platform == "win32" else "biome")
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        for file in PINNED:
            shutil.copy(file, home)
        install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        if subprocess.run(install, cwd=home).returncode:
            print("npm could not install Biome; see the lines above")
            return 1
    return subprocess.run([program, "check", "--error-on-warnings", *sys.argv[1:], "."], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
