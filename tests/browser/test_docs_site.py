"""The built documentation site in a browser, at the widths of a desk and a phone."""

import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ..workers import PATIENCE_S, ROOT
from .conftest import OpenPage
from .served import Site
from .test_views import violations

pytestmark = pytest.mark.all


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from the checkout into another directory."""
    copy = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", copy / "docs")  # the builder does not follow symbolic links
    for name in ("scripts", "src"):
        (copy / name).symlink_to(ROOT / name)
    for file in (ROOT / "mkdocs.yml", *ROOT.glob("*.md")):
        shutil.copy(file, copy)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "site"


FAULTS = """() => [
    ...(document.documentElement.scrollWidth > innerWidth ? [`${document.documentElement.scrollWidth} wide`] : []),
    ...[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src),
]"""


def test_no_page_is_too_wide_or_lacks_an_image_and_axe_finds_nothing(built: Path, opened: OpenPage) -> None:
    faults, widths = {}, [1280, 375]  # of a desk and of a phone
    pages = [path.parent.relative_to(built).as_posix() for path in built.rglob("index.html")]
    assert len(pages) > 20
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *said: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = Site(f"http://127.0.0.1:{server.server_port}")
        page = opened(site, None, at="/404.html")
        # Every page would load the search index, which has its own test.
        page.route("**/search.json", lambda route: route.fulfill(json={"config": {}, "items": []}))
        for path in pages:
            page.goto(f"{site.url}/{path}/")
            # Pictures are loaded lazily, when scrolled into view.
            page.evaluate("document.querySelectorAll('img[loading=lazy]').forEach(image => image.loading = 'eager')")
            found = []
            for width in widths:
                page.set_viewport_size({"width": width, "height": 812})
                page.wait_for_function("[...document.images].every(image => image.complete)")
                found += page.evaluate(FAULTS) + violations(page, "article")  # what is ours of a page
            widths.reverse()  # so that the next page is not laid out a third time
            if found:
                faults[path] = found
        page.context.close()
        server.shutdown()
    assert faults == {}
