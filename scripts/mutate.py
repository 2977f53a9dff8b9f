"""Measure how many small faults in the core and the memory store the tests find: `python3 dev.py mutate`.

A mutant is the source with one fault: another operator, comparison, number, condition, exception, or a loop or a
decorator less, as cosmic-ray makes them. A place in the source and a kind of fault give one mutant, and a sample of
these is drawn with a fixed seed, the same on every machine. Each mutant is run against the tests that execute its
line, the quickest first, up to the first that fails. What stands outside functions runs when a module is imported,
so any test may find it.

Left out are faults that change nothing: in annotations, in what only type checkers read, and in code that parses to
the same as before. A mutant that hangs counts as found. The tests are those that run in one process without servers.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from functools import cache, partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src/slidegate/core", "src/slidegate/stores/memory")
MUTATE_TESTS = ("tests/core", "tests/limiter", "tests/stores", "tests/testing", "tests/test_logs.py")
LEFT_OUT = (
    "redis|valkey|lmdb|cluster|process|fork|interpreter|_child|real_workers|open_store|plugin"
    "|test_kinds|every_kind_of_event|memory_does_not_grow"
)
"""Tests by what their ids say: other stores, other processes, and tests too slow or too wide for one mutant."""
TYPING_ALONE = {"final", "overload", "override"}
QUICK_TESTS = 60
"""How many tests make a first run of their own: most mutants end there, and no slow module is imported for them."""
HANGS_S = 30.0
SLOWER = 10
"""A test hangs that takes longer than HANGS_S and SLOWER times as long as without the fault."""
MAX_MEMORY_BYTES = 4 << 30
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["_pytest.python", "hypothesis.strategies", "pytest", "redis.asyncio", "starlette.applications"]
"""What takes longer to import than most tests run: each process begins as a copy of one that has it."""


class Place(NamedTuple):
    """Where an operator of cosmic-ray makes a fault: at one of the occurrences in a file of what it changes."""

    path: str
    line: int
    operator: str
    occurrence: int


class Mutant(NamedTuple):
    """One fault, and the source of the file with it."""

    path: str
    line: int
    operator: str
    source: str


class Record(NamedTuple):
    """How long each test takes, quickest first, and the tests that run each line of each file."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, set[str]]]


# -- mutants -----------------------------------------------------------------------------------------------------------


def places(path: str) -> Iterator[tuple[tuple[object, ...], Place]]:
    """Yield the places for faults in a file, each with its position and its kind of fault."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = (ROOT / path).read_text("utf-8")
    nodes, unread = list(ast_nodes(get_ast(source))), spans_without_effect(ast.parse(source))
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():
            continue
        positions = (position for node in nodes for position, _ in operator().mutation_positions(node))
        for occurrence, position in enumerate(positions):
            if not any(start <= position < end for start, end in unread):
                yield (path, position, name.split("_")[0]), Place(path, position[0], name, occurrence)


def spans_without_effect(tree: ast.AST) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where nothing runs: annotations, which stay text, and what is there for type checkers."""
    found: list[ast.expr | ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            typing_alone = [name for name in node.decorator_list if ast.unparse(name) in TYPING_ALONE]
            found += [*typing_alone, *([node.returns] if node.returns else [])]
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            found.append(node.annotation)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found.append(node)
    # A decorator begins with a sign that is no part of it.
    return [
        ((node.lineno, node.col_offset - 1), (node.end_lineno or node.lineno, node.end_col_offset or 0))
        for node in found
    ]


def mutant_at(place: Place) -> Mutant | None:
    """Make a mutant; return None if its source is no Python, or says the same as before."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    before = (ROOT / place.path).read_text("utf-8")
    source = mutate_code(before, get_operator(place.operator)(), place.occurrence)
    try:
        compile(source, place.path, "exec")
    except SyntaxError:
        return None
    if ast.dump(ast.parse(source)) == ast.dump(ast.parse(before)):
        return None
    return Mutant(place.path, place.line, place.operator.partition("/")[2], source)


def drawn(sample: int, seed: int) -> list[Mutant]:
    """Draw mutants, at most one for each position and kind of fault."""
    groups: dict[tuple[object, ...], list[Place]] = {}
    for path in sorted(
        path.relative_to(ROOT).as_posix() for source in SOURCES for path in (ROOT / source).rglob("*.py")
    ):
        for group, place in places(path):
            groups.setdefault(group, []).append(place)
    chance = random.Random(seed)
    order = sorted(groups)
    chance.shuffle(order)
    print(f"{len(order)} places for a fault", flush=True)
    mutants = (mutant_at(chance.choice(groups[group])) for group in order)
    return list(islice(filter(None, mutants), sample))


# -- tests -------------------------------------------------------------------------------------------------------------


def run_pytest(copy: Path, arguments: list[str], timeout_s: float, **variables: str) -> tuple[int, str]:
    """Run pytest in a copy of the checkout, in a process of its own; return its exit code and what it wrote."""
    output = copy / "output.txt"
    child = PROCESSES.Process(target=pytest_in, args=(copy, output, arguments, variables))
    child.start()
    child.join(timeout_s)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode or 0, output.read_text("utf-8", "replace")


def pytest_in(copy: Path, output: Path, arguments: list[str], variables: dict[str, str]) -> None:
    """Become pytest: the source and the tests are those of the copy, with no plugin that they do not need."""
    limit_memory()
    os.chdir(copy)
    sys.path[:] = [str(copy / "src"), str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.dont_write_bytecode = "MUTATE_SELECT" in variables  # what is compiled without a fault stays
    fixed = {"HYPOTHESIS_PROFILE": "mutate", "SLIDEGATE_TEST_SEED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.environ.update(fixed | variables)
    with output.open("w", encoding="utf-8") as written:
        for stream in (1, 2):
            os.dup2(written.fileno(), stream)
    import pytest

    plugins = ("pytest_asyncio.plugin", "_hypothesis_pytestplugin", "scripts.mutate_plugin")
    chosen = [part for plugin in plugins for part in ("-p", plugin)]
    sys.exit(pytest.main(["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", *chosen, *arguments]))


def recorded(copy: Path) -> Record:
    """Run the chosen tests once, without a fault. What is compiled on the way stays in the copy."""
    target = copy / "record.json"
    include = ",".join(str(copy / source / "*") for source in SOURCES)
    tests = [path for path in MUTATE_TESTS if (copy / path).exists()]  # a file may have moved into a folder
    code, output = run_pytest(
        copy, tests, 3_600, MUTATE_RECORD=str(target), MUTATE_LEAVE_OUT=LEFT_OUT, MUTATE_INCLUDE=include
    )
    if code:
        sys.exit(f"{output}\nmutate: the tests fail without any fault")
    read = json.loads(target.read_text("utf-8"))
    names = list(read["seconds"])
    lines = {
        Path(path).as_posix(): {int(line): {names[number] for number in tests} for line, tests in found.items()}
        for path, found in read["lines"].items()
    }
    return Record(dict(sorted(read["seconds"].items(), key=lambda row: row[1])), lines)


@cache
def lines_together(path: str) -> tuple[frozenset[int], dict[int, range]]:
    """Return the lines of a file that stand in functions, and the statement or the head of one that a line is in."""
    inside: set[int] = set()
    together: dict[int, range] = {}
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):  # outer statements come first
        if not isinstance(node, ast.stmt | ast.ExceptHandler):
            continue
        body: list[ast.stmt] = getattr(node, "body", [])
        end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
        together |= dict.fromkeys(range(node.lineno, end), range(node.lineno, end))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(range(end, (node.end_lineno or end) + 1))
    return frozenset(inside), together


def tests_of(mutant: Mutant, record: Record) -> list[str]:
    """Return the tests that could find a mutant, quickest first."""
    inside, together = lines_together(mutant.path)
    lines = record.lines.get(mutant.path, {})
    near = {mutant.line, *together.get(mutant.line, ())}
    if mutant.line in inside:
        tests = set().union(*(lines.get(line, ()) for line in near))
        if tests or near.isdisjoint(lines):
            return [test for test in record.seconds if test in tests]
    # It runs when a module is imported. Those that run the file are the likeliest; the order is stable.
    likely = set().union(*lines.values())
    return sorted(record.seconds, key=lambda test: test not in likely)


def found_by(mutant: Mutant, record: Record, copies: SimpleQueue[Path]) -> str:
    """Run the tests of a mutant in a free copy of the checkout; return the first that fails, or ""."""
    tests, copy = tests_of(mutant, record), copies.get()
    try:
        (copy / mutant.path).write_text(mutant.source, "utf-8")
        os.utime(copy / mutant.path, (0, 0))  # or what was compiled of a file of the same second is taken for it
        parts = [part for part in (tests[:QUICK_TESTS], tests[QUICK_TESTS:]) if part]
        return next(filter(None, (failed(copy, part, record) for part in parts)), "")
    finally:
        shutil.copy2(ROOT / mutant.path, copy / mutant.path)  # with its time, so that what was compiled is still valid
        copies.put(copy)


def failed(copy: Path, tests: list[str], record: Record) -> str:
    """Return the first of the tests that fails, or ""."""
    (copy / "select.txt").write_text("\n".join(tests), "utf-8")
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    hangs_s = max(HANGS_S, SLOWER * max(record.seconds[test] for test in tests))
    ends = ["-o", f"faulthandler_timeout={hangs_s:.0f}", "-o", "faulthandler_exit_on_timeout=true"]
    all_s = 2 * hangs_s + SLOWER * sum(record.seconds[test] for test in tests)
    code, output = run_pytest(copy, ["-x", *ends, *files], all_s, MUTATE_SELECT=str(copy / "select.txt"))
    if code == 5:
        raise RuntimeError(f"none of {files} was collected:\n{output}")
    named = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    return (named.group(1) if named else f"exit code {code}") if code else ""


# -- command -----------------------------------------------------------------------------------------------------------


def shown(mutant: Mutant) -> str:
    """Return what a mutant changes."""
    before = (ROOT / mutant.path).read_text("utf-8").splitlines()
    diff = list(unified_diff(before, mutant.source.splitlines(), n=2, lineterm=""))[2:]
    return "\n".join((f"{mutant.path}:{mutant.line} ({mutant.operator})", *diff, ""))


def limit_memory() -> None:
    """Let a fault that fills the memory fail."""
    import resource  # there is none on Windows, as there are no processes that begin as copies

    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def survivors(sample: list[Mutant], processes: int) -> list[Mutant]:
    """Try each mutant, tell what becomes of it, and return those that no test finds."""
    survive: list[Mutant] = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(processes) as pool:
        # Hypothesis looks for constants in the source that it tests, but not below a directory of this name. To look
        # takes longer than most mutants do, and with the source the examples would change.
        first, *others = [Path(directory, "site-packages", str(number)) for number in range(processes)]
        shutil.copytree(ROOT, first, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        record = recorded(first)
        print(f"{len(record.seconds)} tests take {sum(record.seconds.values()):.0f} s", flush=True)
        copies: SimpleQueue[Path] = SimpleQueue()
        copies.put(first)
        for copy in others:
            copies.put(shutil.copytree(first, copy))
        tests = pool.map(partial(found_by, record=record, copies=copies), sample)
        for number, (mutant, test) in enumerate(zip(sample, tests, strict=True), 1):
            print(f"{number}/{len(sample)} {mutant.path}:{mutant.line} {test or 'SURVIVES'}", flush=True)
            survive += [] if test else [mutant]
    return survive


def main() -> int:
    """Draw mutants, try each, and print the share that the tests find and every mutant that none does."""
    parser = argparse.ArgumentParser(prog="dev.py mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=400, help="how many mutants (400)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at once (all cores)")
    parser.add_argument("--at-least", type=float, metavar="PERCENT", help="fail if the tests find fewer")
    options = parser.parse_args()
    os.environ["PYTHONHASHSEED"] = "0"
    PROCESSES.set_forkserver_preload(PRELOADED)
    sample = drawn(options.sample, options.seed)
    survive = survivors(sample, options.processes)
    share = 100 * (1 - len(survive) / len(sample))
    print("", *map(shown, survive), f"{share:.1f} % of {len(sample)} mutants found, {len(survive)} survive", sep="\n")
    return int(options.at_least is not None and share < options.at_least)


if __name__ == "__main__":
    sys.exit(main())
