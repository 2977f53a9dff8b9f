"""What tests of files share."""

from pathlib import Path

import pytest

from ..web.conftest import _clock_of_files  # noqa: F401 - a fixture
from ..web.middlewares import FollowedFiles


@pytest.fixture
def files(tmp_path: Path) -> FollowedFiles:
    """Files that tests write and that middlewares follow."""
    return FollowedFiles(tmp_path)
