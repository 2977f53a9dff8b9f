"""The environments of dev.py: which of them it uses, and which it makes anew."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = "import dev; print(dev.environment('requirements/own.txt').parent)"


def made_anew(checkout: Path) -> bool:
    """Ask for the environment of a checkout, and return whether it was made."""
    ended = subprocess.run(
        [sys.executable, "-c", ENVIRONMENT], cwd=checkout, capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout == f"{checkout / '.venv'}\n"
    return "installing requirements/own.txt into .venv/ ..." in ended.stderr


def test_an_environment_is_made_once_and_anew_where_the_checkout_is_a_copy(tmp_path: Path) -> None:
    checkout, requirements = tmp_path / "checkout", tmp_path / "checkout" / "requirements"
    requirements.mkdir(parents=True)
    shutil.copy(ROOT / "dev.py", checkout)
    for name in ("own.txt", "use.txt", "uv.txt", "redis.in"):
        (requirements / name).touch()
    programs = checkout / "build" / f"uv-{hashlib.sha256(b'').hexdigest()[:12]}" / Path(sys.executable).parent.name
    programs.mkdir(parents=True)
    name = "uv"
    if os.name == "nt":
        name = "uv.exe"
    shutil.copy(Path(sys.executable).with_name(name), programs)
    assert [made_anew(checkout), made_anew(checkout)] == [True, False]
    copy = shutil.copytree(checkout, tmp_path / "copy", symlinks=True)
    assert [made_anew(copy), made_anew(copy)] == [True, False]
    assert (tmp_path / "copy" / "src") in map(Path, next(copy.rglob("checkout.pth")).read_text().splitlines())
