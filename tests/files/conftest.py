"""What these tests share with those of the middleware."""

from ..web.conftest import _clock_of_files, directory, observer, opened_as  # noqa: F401 - fixtures
