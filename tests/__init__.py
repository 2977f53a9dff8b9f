"""The tests. Helpers compare with `assert` as tests do, so that a failure shows the values."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
