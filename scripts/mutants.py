"""Changes one node of a function of the package at a time, and reports how many of the changes the tests notice.

    python -m scripts.mutants --seed 1 --count 200
    python -m scripts.mutants --seed 1 --count 75 core windows web/visit.py

The same seed draws the same changes from the same source. Each is tried with the tests of its file, which notice it by
failing or by hanging, and gets a line in build/mutants/SEED.jsonl: a run that was stopped goes on where it was. Changed
is a copy of the source.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src"
TESTS: Final = ROOT / "tests"
BUILD: Final = ROOT / "build" / "mutants"
PYTEST: Final = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", "pythonpath=.")
PATIENCE_S: Final = 900
PAIRS: Final = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.LShift, ast.RShift)),
)
OTHERS: Final[dict[type[Any], type[Any]]] = {**dict(PAIRS), **{two: one for one, two in PAIRS}, ast.Mod: ast.FloorDiv}
"""What an operator becomes."""
FOLDERS: Final = dict.fromkeys(("_outbound", "_pauses", "httpx2"), "httpx") | {"_path_examples": "openapi"}


def changed(node: Any) -> ast.AST | None:
    """Return what is put in place of a node; None if it stays."""
    other = copy.copy(node)
    match node:
        case ast.Compare(ops=[op, *more]) if type(op) in OTHERS:
            other.ops = [OTHERS[type(op)](), *more]
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in OTHERS:
            other.op = OTHERS[type(op)]()
        case ast.Constant(value=int(value)):  # 0 or False, 1 or True, or another number
            other.value = 1 - value
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand  # type: ignore[no-any-return]
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            other.value = ast.Constant(None)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign() | ast.Raise() | ast.Continue() | ast.Break():
            return ast.Pass()
        case _:
            return None
    return other  # type: ignore[no-any-return]


def drawn(seed: int, count: int, places: list[str]) -> list[tuple[Path, str, str]]:
    """Return changes in some files and folders: the file, what changes, and the source of the file with it."""
    found: dict[ast.AST, tuple[Path, ast.AST, ast.AST]] = {}
    chosen = [SOURCE / "slidegate" / place for place in places] or [SOURCE]
    for path in sorted({path for one in chosen for path in ([one] if one.is_file() else one.rglob("*.py"))}):
        tree = ast.parse(path.read_text("utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                nodes = (node for statement in function.body for node in ast.walk(statement))
                found |= {node: (path, tree, other) for node in nodes if (other := changed(node)) is not None}
    changes = []
    for node in random.Random(seed).sample([*found], count):
        path, tree, other = found[node]
        what = f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)} -> {ast.unparse(other)}"  # type: ignore[attr-defined]
        changes.append((path, what, ast.unparse(copy.deepcopy(tree, {id(node): other}))))  # with the other in its place
    return changes


def tests_of(path: Path) -> tuple[str, ...]:
    """Return the tests of a file, its own first: the folder called like its own, or the next one further out."""
    folders = path.relative_to(SOURCE).parts[1:-1] or (FOLDERS.get(path.stem, path.stem),)
    folder = TESTS.joinpath(*folders)
    while not folder.exists():
        folder = folder.parent
    chosen = [folder / f"test_{path.stem}.py", folder, TESTS / "test_messages.py"]
    if "core" in folders:
        chosen += [TESTS / "stores" / "memory", TESTS / "limiter"]
    return tuple(str(one) for one in chosen if one.exists() and one != TESTS)


def passes(tests: tuple[str, ...]) -> bool:
    """Return whether tests pass with the copy of the source."""
    paths = {"PYTHONPATH": str(BUILD / "src"), "HYPOTHESIS_STORAGE_DIRECTORY": str(BUILD / "hypothesis")}
    command, quiet = (sys.executable, *PYTEST, *tests), {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | paths, start_new_session=True, **quiet) as run:
        try:
            return run.wait(PATIENCE_S) == 0
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # the programs that the tests have started, too
            return False


def main() -> None:
    """Try the changes that have not been tried, and print the share of those that the tests notice."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("places", nargs="*", help="files and folders below src/slidegate; all without one")
    options = parser.parse_args()
    fine: set[tuple[str, ...]] = set()
    shutil.copytree(SOURCE, BUILD / "src", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    log = BUILD / f"{options.seed}.jsonl"
    log.touch()
    tried = dict(map(json.loads, log.read_text("utf-8").splitlines()))
    changes = drawn(options.seed, options.count, options.places)
    for path, what, source in changes:
        if what in tried:
            continue
        tests, copied = tests_of(path), BUILD / "src" / path.relative_to(SOURCE)
        if tests not in fine and not passes(tests):
            sys.exit(f"these tests fail without a change: {' '.join(tests)}")
        fine.add(tests)
        copied.write_text(source, "utf-8")
        tried[what] = not passes(tests)
        shutil.copy(path, copied)
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps([what, tried[what]]) + "\n")
        print("noticed " if tried[what] else "MISSED  ", what, flush=True)
    noticed = sum(tried[what] for _, what, _ in changes)
    print(f"{noticed} of {len(changes)} changes noticed: {noticed / len(changes):.0%}")


if __name__ == "__main__":
    main()
