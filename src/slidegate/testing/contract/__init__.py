"""The store contract: the tests that every store must pass. Requires Hypothesis and pytest.

Derive a test class from `StoreContract`. It plays random programs to the store and to a reference model.
"""

from __future__ import annotations

try:
    from .harness import StoreHarness
    from .store_contract import StoreContract
except ModuleNotFoundError as error:
    if error.name not in ("hypothesis", "pytest"):
        raise
    raise ImportError(f'the store contract needs the package {error.name}: pip install "slidegate[testing]"') from error

__all__ = ["StoreContract", "StoreHarness"]
