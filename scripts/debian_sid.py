"""Runs a command of dev.py in a Debian sid, which has the newest Pythons, on any Linux with debootstrap.

    sudo python3 -m scripts.debian_sid /var/tmp/sid 3.15
    sudo python3 -m scripts.debian_sid /var/tmp/sid 3.14 test --all --copy /etc/pip.conf /etc/ssl/certs

The directory is made if it is missing, in two minutes, and stays. The last commit of the checkout is tested. The
command has the variables of this environment; ``--copy``, which ends the line, gives it files that they name, or
settings of pip and uv.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHONS: Final = ("python3.13", "python3.14", "python3.15")
PACKAGES: Final = ("ca-certificates", "curl", "e2fsprogs", "gcc", "git", "libc6-dev", *PYTHONS)
# A test may mount file systems only where the root is a mount point, so the directory becomes one.
ENTER: Final = """
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
exec chroot "$0" sh -c 'cd /srv/checkout && exec "$@"' sh "$@"
"""


def make(system: Path) -> None:
    """Install Debian sid into a directory."""
    included = [*PACKAGES, *(f"{python}-{part}" for python in PYTHONS for part in ("dev", "venv"))]
    # An installation that is interrupted must not be taken for a system by the next call.
    unfinished = system.with_name(f"{system.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = ("debootstrap", "--variant=minbase", f"--include={','.join(included)}", "sid", unfinished)
    subprocess.run(command, check=True)
    unfinished.rename(system)


def main() -> int:
    """Install the system if it is missing, clone the checkout into it, and run the command there."""
    parser = argparse.ArgumentParser(prog="python -m scripts.debian_sid")
    parser.add_argument("system", type=Path)
    parser.add_argument("python", choices=[name.removeprefix("python") for name in PYTHONS])
    parser.add_argument("--copy", nargs="+", type=Path, default=[])
    options, arguments = parser.parse_known_args()
    system: Path = options.system.absolute()
    if not system.exists():
        make(system)
    # Links in the other system lead out of it, into this one, so they are replaced and not followed.
    for path in options.copy:
        command = ("cp", "--parents", "--recursive", "--dereference", "--remove-destination", path.absolute(), system)
        subprocess.run(command, check=True)
    checkout = system / "srv" / "checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, checkout], check=True)
    entered = ("unshare", "--mount", "sh", "-ec", ENTER, system, f"python{options.python}", "dev.py")
    return subprocess.run([*entered, *(arguments or ["test"])]).returncode


if __name__ == "__main__":
    sys.exit(main())
