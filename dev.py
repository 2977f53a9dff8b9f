#!/usr/bin/env python3
"""Set up the environment of a command, then run the command. This needs Python 3.11 and nothing else.

An environment is made once by the standard venv module. Into it goes uv, pinned, and uv installs one of the sets in
requirements/, every file of it checked against its hash. `.venv` holds `demo`, `examples` or `dev`; each contains the
one before it, so that the demo runs in any. The benchmarks have an environment of their own, `.venv-bench`: the
libraries beside which they measure choose versions of things that ours must not follow.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from queue import Queue
from threading import Thread

if sys.version_info < (3, 11):  # noqa: UP036 - this file says so, because the packages cannot
    sys.exit("dev.py: slidegate needs Python 3.11 or newer; this is " + sys.version.split()[0])

ROOT = Path(__file__).resolve().parent
REQUIREMENTS = ROOT / "requirements"
SETS = ("uv", "demo", "examples", "dev", "compiled", "bench", "lowest")
MAIN = ROOT / ".venv"
BENCH = ROOT / ".venv-bench"
LOWEST = ROOT / ".venv-lowest"
COMPILED = ROOT / ".venv-compiled"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of CPython that `pythons` looks for."""
BRING_S = 120
"""How long uv may take to bring a Python."""
PYTEST = ("-m", "coverage", "run", "-m", "pytest")
STORES = ("tests/stores", "tests/test_redis_servers.py", "tests/limiter/test_open_store.py")
PROGRAMS = (
    "tests/benchmarks", "tests/browser", "tests/examples", "tests/first_steps", "tests/ops", "tests/outbound",
    "tests/pages", "tests/soak", "tests/testing", "tests/test_acceptance.py", "tests/test_distribution.py",
)  # fmt: skip
PARTS = {
    "pytest (stores)": STORES,
    "pytest (programs)": PROGRAMS,
    "pytest": tuple(f"--ignore={path}" for path in (*STORES, *PROGRAMS)),
}
"""The tests, in parts that run side by side: servers and processes are waited for, so three keep two cores busy."""


WITH_LOWEST = (
    "tests/stores", "tests/limiter", "tests/web/config/test_config.py", "tests/web/test_middleware.py",
    "tests/outbound/test_limited_transport.py", "tests/outbound/test_pauses.py",
)  # fmt: skip
"""The tests that go through every library that is declared."""
LENIENT = ("-o", "addopts=-ra -m 'not deep' -p no:valkey", "-W", "default")
"""Old versions warn of what new ones have mended, and an old pytest does not know all of our settings."""
AGAINST_COMPILED = ("-m", "pytest", "-o", "pythonpath=.")
"""The source must not stand on the path, where it would be found before what is installed."""


def run(*command: object, **environment: str) -> int:
    """Run a command in the checkout and return its exit code."""
    arguments = [str(part) for part in command]
    return subprocess.run(arguments, cwd=ROOT, env={**child_environment(), **environment}).returncode


def child_environment() -> dict[str, str]:
    """Return this process's environment without the variables that make a Python look outside its own environment."""
    misleading = {"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in misleading}
    # uv brings certificates of its own; a machine behind a company's proxy trusts another one, and says so system-wide.
    return {"UV_SYSTEM_CERTS": "1", "UV_LINK_MODE": "copy", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **kept}


def place(home: Path, name: str) -> Path:
    """Return a directory of the environment at `home`: "scripts" or "purelib"."""
    return Path(sysconfig.get_path(name, "venv", {"base": str(home), "platbase": str(home)}))


def with_uv(home: Path) -> Path:
    """Make an environment that holds nothing but uv, unless there is one; return its Python."""
    scripts = place(home, "scripts")
    python = scripts / "python"
    # A directory for this version of Python: a newer one does not find it, and starts afresh.
    if python.exists() and place(home, "purelib").is_dir() and any(scripts.glob("uv*")):
        return python
    try:
        import ensurepip  # noqa: F401 - Debian and Ubuntu leave it out of python3
    except ImportError:
        version = "{}.{}".format(*sys.version_info)
        sys.exit(f"dev.py: this Python has no venv module: sudo apt install python{version}-venv")
    install_uv = ("-m", "pip", "install", "--quiet", "--require-hashes", "-r", REQUIREMENTS / "uv.txt")
    if run(sys.executable, "-m", "venv", "--clear", home) or run(python, *install_uv):
        sys.exit(f"dev.py: {home.name} could not be set up; the lines above say why")
    return python


def environment(home: Path, *sets: str, on_path: tuple[Path, ...] = (ROOT / "src", ROOT)) -> Path:
    """Return the Python of an environment that holds one of `sets`; if it holds none, install the first.

    The directories in `on_path` can be imported from.
    """
    digests = [digest(name) for name in sets]
    stamp = home / "installed"
    python = with_uv(home)
    if stamp.exists() and stamp.read_text() in digests:
        return python
    print(f"installing requirements/{sets[0]}.txt into {home.name}/ ...", file=sys.stderr, flush=True)
    # pip and uv stay: uv counts them as part of an environment that it did not make itself.
    sync = ("-m", "uv", "pip", "sync", "--quiet", "--require-hashes", "--python", python)
    if run(python, *sync, REQUIREMENTS / f"{sets[0]}.txt"):
        sys.exit(f"dev.py: requirements/{sets[0]}.txt could not be installed; the lines above say why")
    # The project itself needs no build: its source and its root (examples, benchmarks) are on the path.
    paths = [os.path.relpath(path, place(home, "purelib")) for path in on_path]
    (place(home, "purelib") / "checkout.pth").write_text("\n".join(paths) + "\n")
    stamp.write_text(digests[0])
    return python


def digest(name: str) -> str:
    """Return what an environment is stamped with: the set, its files' digest and the Python it was made for."""
    content = b"".join((REQUIREMENTS / f"{part}.txt").read_bytes() for part in ("uv", name))
    return f"{name} {sys.version_info[:2]} {hashlib.sha256(content).hexdigest()}"


def demo(args: list[str]) -> int:
    """Replay an access log through an example app, then serve it; its own --help says more."""
    python = environment(MAIN, "demo", "examples", "dev")
    # Not a child: Ctrl-C and signals reach the demo itself, and its paths start where the command was given.
    os.execve(python, [str(python), "-m", "examples.demo", *args], child_environment())


def example(args: list[str]) -> int:
    """Run one of examples/: example NAME [args]; without a name, list them."""
    names = sorted(path.parent.name for path in (ROOT / "examples").glob("*/__main__.py"))
    if args and args[0] in names:
        python = environment(MAIN, "examples", "dev")
        os.execve(python, [str(python), "-m", f"examples.{args[0]}", *args[1:]], child_environment())
    print(f"python3 dev.py example NAME, with one of: {', '.join(names)}")
    return 2 if args else 0


def test(args: list[str]) -> int:
    """Check everything: style, types, documentation, tests, coverage; with arguments only run pytest with them."""
    python = environment(MAIN, "dev")
    if args:
        return run(python, "-m", "pytest", *args)
    coverage = (python, "-m", "coverage")
    failed = [*server_steps(python), *browser_steps(python), *lint_steps(python), *docs_steps(python)]
    failed += step("coverage erase", *coverage, "erase")
    broken, closing = tests_with_coverage(python)
    failed += broken
    failed += step("coverage combine", *coverage, "combine", "--quiet")
    failed += step("coverage of the core", *coverage, "report", "--include=*/core/*", "--fail-under=100")
    failed += step("coverage", *coverage, "report", "--fail-under=95")
    print("", f"failed: {', '.join(failed)}" if failed else "all checks passed", closing, sep="\n")
    return 1 if failed else 0


def tests_with_coverage(python: Path) -> tuple[list[str], str]:
    """Run the parts of the tests at once; return the names of those that failed, and their closing lines.

    The output of the first is shown as it comes, that of the others when it has ended.
    """
    running: list[tuple[str, subprocess.Popen[bytes], Queue[bytes]]] = []
    for name, chosen in PARTS.items():
        command = [str(python), *PYTEST, "-p", "no:cacheprovider", *chosen]
        process = subprocess.Popen(command, cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE)
        said: Queue[bytes] = Queue()
        # A pipe that nobody reads would hold up the process that writes into it.
        Thread(target=listen, args=(process, said)).start()
        running.append((name, process, said))
    failed, closing = [], []
    for name, process, said in running:
        print(f"\n-- {name}", flush=True)
        last = ""
        for line in iter(said.get, b""):
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
            last = line.decode(errors="replace").strip() or last
        closing.append(last)
        failed += [name] if process.wait() else []
    return failed, "\n".join(closing)


def listen(process: subprocess.Popen[bytes], said: Queue[bytes]) -> None:
    """Put each line that a process writes into a queue, and an empty one at the end."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            said.put(line)
    said.put(b"")


def step(name: str, *command: object) -> list[str]:
    """Run one check under a heading; return its name if it failed."""
    print(f"\n-- {name}", flush=True)
    return [name] if run(*command) else []


def server_steps(python: Path) -> list[str]:
    """Check that there is a redis-server; return the name of the check if one is needed and there is none."""
    return program_steps(python, "redis-server", "tests.redis_servers", "no redis-server from 6.2 on")


def browser_steps(python: Path) -> list[str]:
    """Check that there is a Chromium; return the name of the check if one is needed and there is none."""
    return program_steps(python, "chromium", "tests.browser.chromium", "no Chromium")


def program_steps(python: Path, package: str, looker: str, missing: str) -> list[str]:
    """Look for a program, and install its package if this user may; return its name if it is needed and not there."""
    print(f"\n-- {package}", flush=True)
    look = (python, "-m", looker)
    if not run(*look):
        return []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = ("apt-get", "install", "--yes", "-qq", "--no-install-recommends", package)
        if not run("apt-get", "update", "-qq") and not run(*install) and not run(*look):
            return []
    print(f"dev.py: {missing}, so tests that need one are left out: sudo apt install {package}")
    return [package] if os.environ.get("CI") == "true" else []


def lint_steps(python: Path) -> list[str]:
    """Return the names of the checks of the source that failed."""
    return [
        *step("ruff check", python, "-m", "ruff", "check"),
        *step("ruff format", python, "-m", "ruff", "format", "--check"),
        *step("mypy", python, "-m", "mypy"),
    ]


def docs_steps(python: Path) -> list[str]:
    """Build the documentation; return the name of the check if it failed."""
    return step("docs", python, "-m", "zensical", "build", "--clean", "--strict")


def deep(args: list[str]) -> int:
    """Run pytest with many more random examples, slow tests included; arguments go to pytest."""
    everything = ("-m", "", "-o", "faulthandler_timeout=3600")
    python = environment(MAIN, "dev")
    missing = [*server_steps(python), *browser_steps(python)]
    return run(python, "-m", "pytest", *everything, *args, HYPOTHESIS_PROFILE="deep") or len(missing)


def lint(args: list[str]) -> int:
    """Check style and types."""
    return 1 if lint_steps(environment(MAIN, "dev")) else 0


def docs(args: list[str]) -> int:
    """Build the documentation into site/."""
    return 1 if docs_steps(environment(MAIN, "dev")) else 0


def build(args: list[str]) -> int:
    """Build wheel and source distribution into dist/, twice, and check what is in them; nothing is uploaded."""
    return run(environment(MAIN, "dev"), "-m", "scripts.build_distribution", *args)


def bench(args: list[str]) -> int:
    """Measure beside the libraries we are compared with: bench [NAME] [args]; bench --check counts instructions."""
    all_of_them = not {*args} - {"--save"}
    if all_of_them or "compiled" in args[:2]:
        compiled_wheel(environment(COMPILED, "compiled", on_path=(ROOT,)))
    return run(environment(BENCH, "bench"), "-m", "benchmarks", *args)


def soak(args: list[str]) -> int:
    """Load uvicorn workers on LMDB and Redis, kill some, and check every promise: soak --minutes 10."""
    return run(environment(MAIN, "dev"), "-m", "tests.soak", *args)


def lowest(args: list[str]) -> int:
    """Run tests of stores, limiters and the gate with the lowest versions declared; arguments choose others."""
    return run(environment(LOWEST, "lowest"), "-m", "pytest", *LENIENT, *(args or WITH_LOWEST))


def compiled(args: list[str]) -> int:
    """Build the compiled wheel, install it into .venv-compiled and run all tests against it; arguments go to pytest."""
    python = environment(COMPILED, "compiled", on_path=(ROOT,))
    install = (python, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--reinstall", "--python", python)
    if run(*install, compiled_wheel(python)):
        sys.exit("dev.py: the compiled wheel could not be installed; the lines above say why")
    missing = [*server_steps(python), *browser_steps(python)]
    # The tests find out by themselves whether they run against what is installed there (tests/test_compiled.py).
    return run(python, *AGAINST_COMPILED, *args, SLIDEGATE_COMPILED="1") or len(missing)


def compiled_wheel(python: Path) -> Path:
    """Return the compiled wheel of the source as it is; build it if there is none yet."""
    sources = [*(ROOT / "src").rglob("*.py"), ROOT / "pyproject.toml", ROOT / "scripts" / "compile_wheel.py"]
    content = b"".join(path.read_bytes() for path in sorted(sources))
    made = ROOT / ".cache" / "compiled" / hashlib.sha256(content + sys.version.encode()).hexdigest()[:16]
    if not any(made.glob("*.whl")):
        shutil.rmtree(made.parent, ignore_errors=True)
        print("compiling slidegate; this takes a minute or two ...", file=sys.stderr, flush=True)
        build = ("-m", "hatchling", "build", "--target", "wheel", "--directory", made)
        if run(python, *build, SLIDEGATE_COMPILE="1"):
            sys.exit("dev.py: the wheel could not be compiled; the lines above say why")
    return next(made.glob("*.whl"))


def pythons(args: list[str]) -> int:
    """Run the tests on each CPython from 3.11 to 3.14 that is here or that uv can bring; arguments go to pytest."""
    version = "{}.{}".format(*sys.version_info)
    if args[:1] == ["--this"]:
        return run(environment(ROOT / f".venv-{version}", "dev"), "-m", "pytest", *args[1:])
    failed, missing = [], []
    for version in PYTHONS:
        python = find_python(version)
        if python:
            failed += step(f"Python {version}", python, "dev.py", "pythons", "--this", *args)
        else:
            missing.append(version)
    if missing:
        print(f"\nnot here, and uv cannot bring it: Python {', '.join(missing)}")
    print(f"failed: {', '.join(failed)}" if failed else "all others passed" if missing else "all passed")
    return 1 if failed or len(missing) == len(PYTHONS) else 0


def find_python(version: str) -> str | None:
    """Return a CPython of a version: this one, one on PATH or of pyenv, or one that uv has or brings."""
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True))
    for place_of_it in filter(None, places):
        # On PATH there may be a script of pyenv that only says that no such Python was chosen.
        if asked(place_of_it, "-c", "import sys; print('{}.{}'.format(*sys.version_info))") == version:
            return str(place_of_it)
    uv = (with_uv(MAIN), "-m", "uv", "python")
    asked(*uv, "install", "--quiet", "--no-bin", version)
    return asked(*uv, "find", "--quiet", "--managed-python", version) or None


def asked(*command: object) -> str:
    """Return the output of a command; nothing if it fails or takes long."""
    arguments = [str(part) for part in command]
    try:
        ended = subprocess.run(
            arguments, cwd=ROOT, env=child_environment(), capture_output=True, text=True, timeout=BRING_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if ended.returncode else ended.stdout.strip()


def lock(args: list[str]) -> int:
    """Compile requirements/*.in to *.txt; --upgrade moves to the newest versions."""
    python = with_uv(MAIN)
    # For every platform, and without the address of the index they come from.
    options = ("--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url")
    for name in SETS:
        files = (f"requirements/{name}.in", "--output-file", f"requirements/{name}.txt")
        header = ("--custom-compile-command", "python3 dev.py lock")
        declared = ("pyproject.toml", "--all-extras", "--resolution", "lowest-direct") if name == "lowest" else ()
        code = run(python, "-m", "uv", "pip", "compile", *options, *header, *declared, *files, *args)
        if code:
            return code
    return 0


COMMANDS = {
    command.__name__: command
    for command in (demo, example, test, deep, lint, docs, build, bench, soak, compiled, lowest, pythons, lock)
}


def main() -> int:
    """Run the command that was asked for."""
    listing = "\n".join(f"  {name:9}{command.__doc__}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="dev.py",
        usage="python3 dev.py COMMAND [args]",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    # All further arguments belong to the command, also those that look like an option of this script.
    chosen = parser.parse_args(sys.argv[1:2]).command
    rest = sys.argv[2:]
    if rest and chosen in {"lint", "docs"}:
        parser.error(f"{chosen} takes no arguments, not {rest[0]!r}")
    return COMMANDS[chosen](rest)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
