"""The metadata hook that sets the long description of a release: the README with absolute links.

A package index does not have the files that the README links to. So each relative link and picture is replaced by the
file's address in the repository, at the tag of the version, so that the page of a version never changes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
"""A code block, in which links are not replaced."""
TARGET: Final = re.compile(
    r"""(?P<before>(?P<picture>\bsrc(?:set)?="|!\[[^]]*]\()|]\()"""
    r"""(?![a-z]+:|//|\#)"""  # an address with a scheme, one with a host, a heading of the same page
    r"""(?P<path>[^")\s]+)"""
)


def absolute(text: str, repository: str, tag: str) -> str:
    """Return a page with its relative links made absolute.

    Args:
        text: The page in Markdown, with links relative to the root of the repository.
        repository: The address of the repository, without a trailing slash.
        tag: The tag to link to.
    """

    def placed(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['before']}{repository}/{kind}/{tag}/{found['path']}"

    parts = FENCE.split(text)
    for place in range(0, len(parts), 2):  # parts at odd indexes are code blocks
        parts[place] = TARGET.sub(placed, parts[place])
    return "".join(parts)


class IndexPage(MetadataHookInterface):
    """Sets `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description to the metadata of pyproject.toml."""
        text = Path(self.root, "README.md").read_text("utf-8")
        tag = f"v{metadata['version']}"
        page = absolute(text, metadata["urls"]["Repository"], tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
