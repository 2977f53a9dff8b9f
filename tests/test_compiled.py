"""What a compiled wheel is made of, and which runs: the source, a wheel, or what was compiled."""

import importlib
import os
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import slidegate
from scripts import compile_wheel

from .workers import TESTED

CONFIG = tomllib.loads((compile_wheel.ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["hooks"]
LISTS = CONFIG["custom"]
COMPILED_RUN = os.environ.get("SLIDEGATE_COMPILED") == "1"
"""Set by `python3 dev.py compiled`."""


def module_of(file: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = file.relative_to(compile_wheel.PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


CHOSEN = {module_of(file) for file in compile_wheel.chosen(LISTS)}
MODULES = [module_of(file) for file in compile_wheel.PACKAGE.rglob("*.py") if "contract" not in file.parts]


def test_the_source_is_out_of_reach_where_a_wheel_is_tested() -> None:
    source = compile_wheel.ROOT / "src"
    assert (str(source) in sys.path) is (source == TESTED)


def test_exactly_the_chosen_modules_are_compiled_and_the_package_says_whether_they_are() -> None:
    assert "slidegate.core.ring" in CHOSEN
    assert slidegate.core.compiled is COMPILED_RUN
    assert slidegate.__compiled__ is COMPILED_RUN
    for name in MODULES:
        path = importlib.import_module(name).__file__ or ""
        assert path.endswith(tuple(EXTENSION_SUFFIXES)) == (COMPILED_RUN and name in CHOSEN), path
    assert [name for name in LISTS["compile"] if not (compile_wheel.PACKAGE / name).exists()] == []


def test_what_is_compiled_needs_no_package_that_the_source_does_not() -> None:
    """mypyc has a library of its own, which some code that it makes imports."""
    names = ", ".join(sorted(CHOSEN))
    code = f"import sys; sys.modules['librt'] = None; import {names}"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


def test_a_class_that_derives_from_a_compiled_one_is_compiled_too() -> None:
    for name in {*MODULES} - CHOSEN:
        own = [one for one in vars(importlib.import_module(name)).values() if isinstance(one, type)]
        bases = {base.__module__ for one in own if one.__module__ == name for base in one.__bases__}
        assert not CHOSEN & bases, f"{name} is interpreted: put the class with its base, or compile its file"
