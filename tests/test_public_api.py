"""What the package offers: the names, that each says what it is, and what importing it costs."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import slidegate
import slidegate.core
import slidegate.events
import slidegate.stats
import slidegate.stores
import slidegate.testing

PACKAGE = Path(slidegate.__file__).parent
EXPORTING = [slidegate, slidegate.core, slidegate.events, slidegate.stats, slidegate.stores]
DOCUMENTED = [*EXPORTING, slidegate.testing]
OPTIONAL = {
    "fastapi",
    "hiredis",
    "http_sf",
    "httpx",
    "hypothesis",
    "lmdb",
    "msgspec",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "pytest",
    "redis",
    "rich",
    "uvicorn",
}


def modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(slidegate.__path__, "slidegate.")]
    return [slidegate, *map(importlib.import_module, names)]


def public_objects() -> list[tuple[str, object]]:
    """Return (dotted name, object) of everything exported, each object once."""
    found: dict[int, tuple[str, object]] = {}
    for module in DOCUMENTED:
        for name in module.__all__:
            found.setdefault(id(getattr(module, name)), (f"{module.__name__}.{name}", getattr(module, name)))
    return list(found.values())


def says_what_it_is(found: object) -> bool:
    """Tell whether a class or function has a docstring of its own, not one that Python made up from the signature."""
    doc = getattr(found, "__doc__", None)
    made_up = inspect.isclass(found) and doc is not None and doc.startswith(f"{found.__name__}(")
    return bool(doc) and not made_up


def public_methods(cls: type) -> Iterator[tuple[str, object]]:
    """Yield (name, method) of what a class of ours offers, what it inherits from another class of ours included."""
    for name, found in inspect.getmembers_static(cls):
        owner = next(base for base in cls.__mro__ if name in vars(base) or base is object)
        if name.startswith("_") or not owner.__module__.startswith("slidegate."):
            continue
        function = getattr(found, "__func__", found)
        if inspect.isfunction(function) or isinstance(found, property):
            yield name, function


@pytest.mark.parametrize("module", EXPORTING, ids=lambda module: module.__name__)
def test_all_names_exactly_what_exists(module: ModuleType) -> None:
    bound = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "annotations" and not inspect.ismodule(value)
    }
    listed = set(module.__all__)
    assert listed == bound, f"missing from __all__: {sorted(bound - listed)}; extra in it: {sorted(listed - bound)}"


@pytest.mark.interpreted("a compiled class has no docstring, and a compiled package loads a module of its own")
def test_public_names_and_methods_say_what_they_are() -> None:
    silent = []
    for name, found in public_objects():
        if inspect.isclass(found) or inspect.isfunction(found):
            silent += [] if says_what_it_is(found) else [name]
        for method, function in public_methods(found) if inspect.isclass(found) else ():
            silent += [] if says_what_it_is(function) else [f"{name}.{method}"]
    assert silent == []


def test_a_limiter_offers_these_words() -> None:
    asked = "charge charge_all hit hit_all inspect peek peek_all refund reset reset_all"
    bans = "ban banned bans export_bans import_bans strike unban"
    rest = "close digest from_url engine key_for limited observe store sync"
    offered = {name for name in dir(slidegate.Limiter()) if not name.startswith("_")}
    assert offered == {*asked.split(), *bans.split(), *rest.split()}


def test_every_exception_has_one_root() -> None:
    strangers = [
        f"{module.__name__}.{name}"
        for module in modules()
        for name, found in vars(module).items()
        if inspect.isclass(found) and issubclass(found, BaseException) and found.__module__ == module.__name__
        if not issubclass(found, slidegate.SlidegateError)
    ]
    assert not strangers


def loaded_by(code: str) -> set[str]:
    """Run `code` in a new interpreter and return the names of the modules that it loaded."""
    lines = [
        "import json, sys",
        f"sys.path.insert(0, {str(PACKAGE.parent)!r})",
        "before = set(sys.modules)",
        code,
        "print(json.dumps(sorted(set(sys.modules) - before)))",
    ]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("module", ["slidegate", "slidegate.testing"])
def test_importing_the_package_loads_nothing_optional(module: str) -> None:
    assert {name.partition(".")[0] for name in loaded_by(f"import {module}")} & OPTIONAL == set()


def test_importing_the_package_loads_nothing_that_few_applications_need() -> None:
    few = (
        *("slidegate.stores.lmdb", "slidegate.stores.redis", "slidegate.web.config"),
        "slidegate.limiter.open_store",
        *("csv", "decimal", "difflib", "tomllib"),
    )
    loaded = loaded_by("import slidegate")
    assert [name for name in loaded if name.startswith(few)] == []
    assert {"slidegate.web.middleware", "slidegate.stores.memory.store"} <= loaded


@pytest.mark.interpreted("a compiled class has no docstring, and a compiled package loads a module of its own")
def test_the_core_runs_on_the_standard_library_alone() -> None:
    # The root package hands on names of every room; an empty one in its place shows what the core itself asks for.
    code = f"""
import types
root = types.ModuleType("slidegate")
root.__path__ = [{str(PACKAGE)!r}]
sys.modules["slidegate"] = root
import slidegate.core
"""
    loaded = loaded_by(code)
    ours = {name for name in loaded if name.startswith("slidegate.")}
    assert {name for name in ours if name.split(".")[1] != "core"} == set()
    assert {name.partition(".")[0] for name in loaded - ours} <= {"slidegate", *sys.stdlib_module_names}
    assert "slidegate.core.ring" in ours


def test_importing_the_package_loads_little_beside_starlette() -> None:
    loaded = loaded_by("import slidegate") - loaded_by("import starlette.applications")
    assert loaded & {"pathlib", "anyio.lowlevel", "starlette.middleware.cors"} == set()
    assert "slidegate.web.middleware" in loaded
