"""Putting something in the place of a name wherever a package has imported it, whatever its files are called."""

import importlib
import pkgutil

import pytest


def replace_everywhere(monkeypatch: pytest.MonkeyPatch, package: str, name: str, instead: object) -> list[str]:
    """Replace a name in every module of a package that has it; return those modules, or fail if there is none."""
    root = importlib.import_module(package)
    below = (found.name for found in pkgutil.walk_packages(root.__path__, f"{package}."))
    holders = [module for module in (root, *map(importlib.import_module, below)) if name in vars(module)]
    assert holders, f"no module of {package} has {name!r}"
    for module in holders:
        monkeypatch.setattr(module, name, instead)
    return [module.__name__ for module in holders]
