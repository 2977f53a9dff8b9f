"""django-ratelimit: its decorator on a view, with Django's cache in memory."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.test import RequestFactory
from django_ratelimit.decorators import ratelimit

from slidegate.testing import FakeClock

from ..asking import CLIENT, Answer

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        INSTALLED_APPS=[],
    )
    django.setup()


class View:
    """A view of Django.

    Args:
        function: The view, with its limits.
    """

    def __init__(self, function: Any) -> None:
        cache.clear()
        self.function = function
        self.requests = RequestFactory()

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now; Django responds to `PermissionDenied` with 403."""
        try:
            answer = self.function(self.requests.get(path, REMOTE_ADDR=client, headers=headers or {}))
        except PermissionDenied:
            return Answer(403)
        return Answer(answer.status_code)


def hello(request: Any) -> HttpResponse:
    """Respond immediately."""
    return HttpResponse("hi")


def one(clock: FakeClock) -> View:
    """Return one limit."""
    return View(ratelimit(key="ip", rate="100/m")(hello))


def two_limits(clock: FakeClock) -> View:
    """Return two limits; the outer one is checked first."""
    return View(ratelimit(key="ip", rate="50/h")(ratelimit(key="ip", rate="5/m")(hello)))
