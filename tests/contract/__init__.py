"""The store contract: the tests that every store must pass.

Derive a test class from `StoreContract`. It plays random programs to the store and to the models of `reference`, the
folder beside this one.
"""

import pytest

# Before they are imported: else a failure shows no values, where no more than this folder is copied.
pytest.register_assert_rewrite(f"{__name__}.store_contract", f"{__name__}.player", f"{__name__}.ban_player")

from .store_contract import RandomContract, StoreContract, StoreHarness  # noqa: E402

__all__ = ["RandomContract", "StoreContract", "StoreHarness"]
