"""The store contract: the tests that every store has to pass. They need Hypothesis and pytest.

`StoreContract` is the class to inherit from; the reference model and the random programs lie beside it.
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
