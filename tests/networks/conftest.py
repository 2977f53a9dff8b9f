"""What these tests share with those of files."""

from ..files.conftest import _clock_of_files, files  # noqa: F401 - fixtures
