"""The checks of links see a link that leads nowhere, and take no code for a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from .anchors import ROOT, anchors, broken, leads_somewhere, links

GUIDE = ROOT / "docs" / "guides" / "rules.md"


@pytest.mark.parametrize(
    "target",
    [
        "nowhere.md",
        "bans.md#nowhere",
        "#nowhere",
        "../reference/api.md#slidegate.Nothing",
        "../../../outside.md",
        "../images/x.png",
    ],
)
def test_a_link_that_leads_nowhere_is_seen(target: str) -> None:
    assert not leads_somewhere(GUIDE, target)


def test_links_over_two_lines_images_and_sources_are_seen_and_code_is_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        """# A page

[two
lines](one.md), ![image](two.png), [![both](three.png)](four.md), [titled](five.md "title")

<picture><source srcset="six.svg"><img src="seven.svg"></picture>

`[code](no.md)` and <!-- [comment](no.md) -->

```python
page = "[code](no.md)"
```
"""
    )
    assert links(page.read_text()) == ["one.md", "two.png", "three.png", "four.md", "five.md", "six.svg", "seven.svg"]
    assert broken(page) == links(page.read_text())


def test_headings_of_one_name_have_anchors_of_their_own_as_on_the_site(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `page`\n\n## What's new, 2.0?\n\n## Again\n\n## Again\n\n::: slidegate.Rule\n")
    assert anchors(page) == {"a-page", "whats-new-20", "again", "again_1", "slidegate.Rule"}
