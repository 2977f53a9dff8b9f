"""The metadata hook that makes the long description of a release: the README, with links that work anywhere.

An index shows that text far from the files that it links to. So each relative link and picture gets the address that
the file has in the repository, at the tag of the version: what a reader of that version sees never changes afterwards.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
"""A block of code, in which nothing is a link."""
TARGET: Final = re.compile(
    r"""(?P<before>(?P<picture>\bsrc(?:set)?="|!\[[^]]*]\()|]\()"""
    r"""(?![a-z]+:|//|\#)"""  # an address with a scheme, one with a host, a heading of the same page
    r"""(?P<path>[^")\s]+)"""
)


def absolute(text: str, repository: str, tag: str) -> str:
    """Return a page whose relative links are absolute ones.

    Args:
        text: The page, in Markdown; its links are relative to the root of the repository.
        repository: The address of the repository, without a slash at its end.
        tag: The tag at which the files are shown.
    """

    def placed(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['before']}{repository}/{kind}/{tag}/{found['path']}"

    parts = FENCE.split(text)
    for place in range(0, len(parts), 2):  # a part at an odd place is a block of code
        parts[place] = TARGET.sub(placed, parts[place])
    return "".join(parts)


class IndexPage(MetadataHookInterface):
    """Sets `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the long description to what pyproject.toml says."""
        text = Path(self.root, "README.md").read_text("utf-8")
        tag = f"v{metadata['version']}"
        page = absolute(text, metadata["urls"]["Repository"], tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
