"""What holds for the checkout as a whole: requirements, versions, the built package, the script that runs it."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import hatchling.build
import pytest

import dev
import slidegate

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[\w.]+)(?: ; (?P<marker>.+?))?(?: --hash=sha256:[0-9a-f]{64})+"
)
KINDS = ("css", "html", "js", "lua", "py", "svg")
"""The kinds of files that the package consists of."""
# Spelt so that this file does not find itself.
FORBIDDEN = {
    "package index": re.compile(r"pypi[.]org|pythonhosted[.]org|npmjs[.]|--(?:extra-)?index[-]url|--find[-]links"),
    "path of one machine": re.compile(r"(?<![\w.>])/(?:home|root|work|Users)/\w"),
}


def text_files() -> Iterator[Path]:
    """Yield every text file of the checkout that is not ignored by git."""
    lines = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    ignored = {".git", *(line.strip("/") for line in lines if line.endswith("/"))}
    for directory, below, files in os.walk(ROOT):
        below[:] = [name for name in below if name not in ignored]
        # In a worktree of git, .git is a file.
        for path in (Path(directory, file) for file in files if file != ".git"):
            if b"\0" not in path.read_bytes()[:8192]:
                yield path


def finds(text: str) -> list[str]:
    """Return what of the forbidden a text holds."""
    return [f"{what}: {found[0]}" for what, pattern in FORBIDDEN.items() for found in [pattern.search(text)] if found]


def requirements(path: Path) -> list[str]:
    """Return the requirements of a compiled file, each on one line."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
    return re.sub(r"\s*\\\s*", " ", "\n".join(lines)).splitlines()


def pins(path: Path) -> set[tuple[str, str, str | None]]:
    """Return (name, version, marker) of a compiled file."""
    matches = map(PIN.fullmatch, requirements(path))
    return {(found["name"], found["version"], found["marker"]) for found in matches if found}


def names(lines: list[str]) -> set[str]:
    """Return the distributions that requirement lines ask for."""
    found = (re.match(r"[A-Za-z0-9][\w.-]*", line) for line in lines)
    return {match[0].lower() for match in found if match}


def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    found = {path.relative_to(ROOT).as_posix(): finds(path.read_text("utf-8", "replace")) for path in text_files()}
    assert {path: what for path, what in found.items() if what} == {}
    assert {"dev.py", "README.md", ".ci/run", "requirements/dev.txt"} <= set(found)


@pytest.mark.parametrize("parts", [("--index", "url x"), ("--extra", "index", "url=x")])
def test_the_address_of_an_index_is_found(parts: tuple[str, ...]) -> None:
    assert finds("-".join(parts))


@pytest.mark.parametrize("parts", [("see ", "home", "me"), ("file://", "root", "wheels"), ("(", "work", "x)")])
def test_a_path_of_one_machine_is_found(parts: tuple[str, ...]) -> None:
    assert finds("/".join(parts))


def test_every_set_is_compiled() -> None:
    assert [path.stem for path in LOCKS] == sorted(dev.SETS)
    assert sorted(path.stem for path in (ROOT / "requirements").glob("*.in")) == sorted(dev.SETS)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_requirement_is_pinned_with_hashes(path: Path) -> None:
    assert [line for line in requirements(path) if not PIN.fullmatch(line)] == []
    assert len(pins(path)) == len(requirements(path)) > 0


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_what_a_set_asks_for_is_in_its_compiled_file(path: Path) -> None:
    asked = path.with_suffix(".in").read_text("utf-8").splitlines()
    assert names(asked) <= {name for name, _, _ in pins(path)}


def test_one_environment_serves_the_demo_and_the_tests() -> None:
    assert pins(ROOT / "requirements" / "demo.txt") <= pins(ROOT / "requirements" / "dev.txt")


def test_what_the_package_depends_on_is_in_every_set() -> None:
    for name in ("demo", "dev", "bench"):
        assert names(PROJECT["dependencies"]) <= {pin for pin, _, _ in pins(ROOT / "requirements" / f"{name}.txt")}


def test_what_the_extras_bring_is_there_for_the_tests() -> None:
    extras = [line for name, lines in PROJECT["optional-dependencies"].items() if name != "all" for line in lines]
    assert names(extras) <= {pin for pin, _, _ in pins(ROOT / "requirements" / "dev.txt")}


def test_all_is_every_extra_that_an_application_may_want() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"all", "testing"}
    assert PROJECT["optional-dependencies"]["all"] == [f"slidegate[{','.join(sorted(extras))}]"]


def test_classifiers_name_the_versions_of_python_that_the_tests_run_on() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    # 3.14 is looked for and gets its classifier when the tests have passed on it.
    assert named == [version for version in dev.PYTHONS if version != "3.14"]
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_one_version_everywhere() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert newest, "CHANGELOG.md has no heading such as `## 0.1.0`"
    assert PROJECT["version"] == slidegate.__version__ == newest[1]


def scripts_in(source: str) -> Iterator[ast.stmt]:
    """Yield the imports from the package in every text of a Python file that is itself Python, for another process."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "slidegate" in node.value:
            for line in re.findall(r"(?:^|;)[ \t]*((?:from|import) slidegate\b[^;\n]*)", node.value, re.MULTILINE):
                with suppress(SyntaxError):
                    yield from ast.parse(line.strip()).body


def missing_names(statement: ast.stmt) -> list[str]:
    """Return the modules and names of an import that are not there."""
    missing = []
    if isinstance(statement, ast.Import):
        missing = [alias.name for alias in statement.names if not is_there(alias.name)]
    elif isinstance(statement, ast.ImportFrom):
        asked = [f"{statement.module}.{alias.name}" for alias in statement.names]
        missing = [name for name in asked if not is_there(name)]
    return missing


def is_there(name: str) -> bool:
    """Return whether a dotted name is a module, or a name in one."""
    inside, _, last = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        return is_there(inside) and hasattr(sys.modules[inside], last) if inside else False
    return True


def test_scripts_inside_tests_import_only_names_that_are_there() -> None:
    folders = ("tests", "benchmarks", "examples")
    # These two hold samples of what is refused.
    samples = {"test_architecture.py", "test_house.py"}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.name not in samples]
    found = [(path.name, statement) for path in files for statement in scripts_in(path.read_text("utf-8"))]
    assert len(found) > 10
    missing = {(file, name) for file, statement in found for name in missing_names(statement)}
    assert missing == set()


@pytest.mark.parametrize("line", ["from slidegate.core import Nothing", "import slidegate.nothing; x = 1"])
def test_a_script_that_imports_what_is_gone_is_found(line: str) -> None:
    (statement,) = scripts_in(f"script = {line!r}")
    assert missing_names(statement)


# -- the built package ---------------------------------------------------------------------------------------------


def test_wheel_holds_the_package_typed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path for ending in KINDS for path in (ROOT / "src").rglob(f"*.{ending}"))
    source = {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert held == {*source, "slidegate/py.typed"}


def test_wheel_runs_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    script = f"import sys; sys.path.insert(0, {str(wheel)!r}); import slidegate; print(slidegate.__file__)"
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.startswith(str(wheel))


def source_distribution(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build the source distribution and unpack it; return where."""
    monkeypatch.chdir(ROOT)
    with tarfile.open(place / hatchling.build.build_sdist(str(place))) as archive:
        archive.extractall(place, filter="data")
    (root,) = (path for path in place.iterdir() if path.is_dir())
    return root


def test_source_distribution_holds_every_file_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = source_distribution(tmp_path, monkeypatch)
    held = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    # Tests read files of all kinds: whatever is left out, one of them may need.
    assert {path.relative_to(ROOT).as_posix() for path in text_files()} <= held | {"PKG-INFO"}
    assert {name for name in held if name.startswith(".")} <= {
        *(".gitignore", ".ci/run", ".pre-commit-config.yaml"),
        *(f".github/workflows/{name}.yml" for name in ("compiled", "instructions", "release")),
        *(f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "config", "idea")),
    }
    assert os.access(root / ".ci" / "run", os.X_OK)


@pytest.mark.deep
def test_the_tests_of_the_source_distribution_pass_where_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = source_distribution(tmp_path, monkeypatch)
    parts = (
        "test_house",
        "test_public_api",
        "test_architecture",
        "limiter/test_limiter",
        "core/windows/test_theory",
        "core/test_networks",
    )
    parts += ("ops/test_access_log_lines", "web/test_middleware", "stores/test_lmdb_files")
    chosen = [str(root / "tests" / f"{part}.py") for part in parts]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    paths = os.pathsep.join((str(root / "src"), str(root)))
    ended = subprocess.run(
        command, cwd=root, env={**dev.child_environment(), "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-2_000:]
    assert re.search(r"\d{3,} passed", ended.stdout)


# -- dev.py --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An environment that looks as if it held uv and nothing else."""
    home = tmp_path / ".venv"
    for directory in (dev.place(home, "scripts"), dev.place(home, "purelib")):
        directory.mkdir(parents=True)
    for name in ("python", "uv"):
        (dev.place(home, "scripts") / name).touch()
    return home


class Runs:
    """Stands in for `dev.run`: notes the commands, and fails those that hold a word."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.commands: list[list[str]] = []

    def __call__(self, *command: object, **environment: str) -> int:
        self.commands.append([str(part) for part in command])
        return int(self.failing in self.commands[-1])


def test_an_old_python_can_read_the_script_that_refuses_it() -> None:
    assert ast.parse((ROOT / "dev.py").read_text("utf-8"), feature_version=(3, 6))


def test_a_python_without_venv_is_told_which_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match=r"apt install python3\.\d+-venv$"):
        dev.with_uv(tmp_path / ".venv")


def test_an_environment_is_filled_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(dev, "run", runs)
    for _ in range(2):
        dev.environment(home, "demo", "dev")
    (command,) = runs.commands
    assert command[-1] == str(ROOT / "requirements" / "demo.txt")
    assert "--require-hashes" in command


def test_the_demo_runs_in_the_environment_of_the_tests(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(dev, "run", runs)
    dev.environment(home, "dev")
    dev.environment(home, "demo", "dev")
    assert len(runs.commands) == 1


def test_a_changed_requirement_is_installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(dev, "run", runs)
    dev.environment(home, "dev")
    monkeypatch.setattr(dev, "digest", lambda name: f"{name} changed")
    dev.environment(home, "dev")
    assert len(runs.commands) == 2


def test_a_failed_installation_is_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "run", Runs(failing="sync"))
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"requirements/dev\.txt could not be installed"):
            dev.environment(home, "dev")


@pytest.mark.parametrize("failing", ["", "check", "--check", "mypy", "zensical", "--fail-under=100", "--fail-under=95"])
def test_one_failed_check_fails_the_whole_run(
    failing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "run", Runs(failing))
    monkeypatch.setattr(dev, "environment", lambda home, *sets: Path("python"))
    monkeypatch.setattr(dev, "tests_with_coverage", lambda python: ([], "== 7 passed in 1.00s =="))
    assert dev.test([]) == (1 if failing else 0)
    assert ("failed: " in capsys.readouterr().out) == bool(failing)


@pytest.mark.parametrize(
    ("steps", "package", "looker"),
    [
        (dev.server_steps, "redis-server", "tests.redis_servers"),
        (dev.browser_steps, "chromium", "tests.browser.chromium"),
    ],
)
@pytest.mark.parametrize(
    ("root", "failing", "installs", "there"),
    [
        (False, "", False, True),
        (False, "look", False, False),
        (True, "look", True, False),
        (True, "apt-get", False, True),
    ],
)
@pytest.mark.parametrize("ci", [False, True])
def test_a_program_is_looked_for_then_installed_and_must_be_there_for_continuous_integration(
    steps: Callable[[Path], list[str]],
    package: str,
    looker: str,
    root: bool,
    failing: str,
    installs: bool,
    there: bool,
    ci: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = Runs(looker if failing == "look" else failing)
    for name, stand_in in (("run", runs), ("shutil.which", lambda name: name), ("os.geteuid", lambda: int(not root))):
        monkeypatch.setattr(f"dev.{name}", stand_in)
    monkeypatch.setenv("CI", "true" if ci else "")
    assert steps(Path("python")) == ([package] if ci and not there else [])
    assert any("install" in command for command in runs.commands) == installs
    assert (f"sudo apt install {package}" in capsys.readouterr().out) == (not there)


@pytest.mark.parametrize("failing", ["", "--this"])
def test_each_python_that_is_found_runs_the_tests_and_the_others_are_named(
    failing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(failing or "nothing fails")
    monkeypatch.setattr(dev, "run", runs)
    monkeypatch.setattr(dev, "find_python", lambda version: None if version == "3.13" else f"python{version}")
    assert dev.pythons(["-k", "x"]) == int(bool(failing))
    assert [command[0] for command in runs.commands] == ["python3.11", "python3.12", "python3.14"]
    assert all(command[1:] == ["dev.py", "pythons", "--this", "-k", "x"] for command in runs.commands)
    said = capsys.readouterr().out
    assert "not here, and uv cannot bring it: Python 3.13\n" in said
    assert ("failed: Python 3.11, Python 3.12" in said) == bool(failing)


def test_no_python_at_all_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "find_python", lambda version: None)
    assert dev.pythons([]) == 1


def test_a_python_is_found_on_the_path_in_pyenv_or_by_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "versions" / "3.9.1" / "bin").mkdir(parents=True)
    of_pyenv = tmp_path / "versions" / "3.9.1" / "bin" / "python3.9"
    of_pyenv.touch()
    answers: dict[str, str] = {}
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(dev, "with_uv", lambda home: "uv")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(dev, "asked", lambda *command: answers.get(str(command[0]), ""))
    assert dev.find_python("{}.{}".format(*sys.version_info)) == sys.executable
    assert dev.find_python("3.9") is None
    for teller, said, found in (
        ("uv", "/uv/python", "/uv/python"),
        (str(of_pyenv), "3.9", str(of_pyenv)),
        ("/bin/python3.9", "3.9", "/bin/python3.9"),
    ):
        answers[teller] = said
        assert dev.find_python("3.9") == found


def test_a_command_that_fails_hangs_or_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "BRING_S", 0.2)
    assert dev.asked(dev.ROOT / "no such program") == ""
    assert dev.asked(sys.executable, "-c", "print(1); raise SystemExit(1)") == ""
    assert dev.asked(sys.executable, "-c", "import threading; threading.Event().wait()") == ""
    monkeypatch.setattr(dev, "BRING_S", 60)
    assert dev.asked(sys.executable, "-c", "print(1)") == "1"


def test_pytest_closes_the_run_with_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "PYTEST", ("-c", "print('3 failed, 7 passed in 1.00s'); raise SystemExit(1)"))
    closing = "3 failed, 7 passed in 1.00s"
    assert dev.tests_with_coverage(Path(sys.executable)) == ([*dev.PARTS], "\n".join([closing] * len(dev.PARTS)))
    assert "7 passed" in capfd.readouterr().out


def test_continuous_integration_runs_the_second_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "exec python3 dev.py test" in script.read_text("utf-8").splitlines()
