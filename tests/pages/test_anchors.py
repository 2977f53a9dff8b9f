"""The checks of links see a link that leads nowhere, and take no code for a link."""

from __future__ import annotations

from .anchors import ROOT, leads_somewhere, links

GUIDE = ROOT / "docs" / "guides" / "rules.md"
NOWHERE = ["nowhere.md", "bans.md#nowhere", "#nowhere", "../reference/api.md#slidegate.Nothing", "../../../outside.md"]
PAGE = """
[two
lines](one.md), ![image](two.png), [![both](three.png)](four.md), [titled](five.md "title")

<picture><source srcset="six.svg"><img src="seven.svg"></picture>

`[code](no.md)` and <!-- [comment](no.md) -->

```python
page = "[code](no.md)"
```
"""


def test_links_over_two_lines_images_and_sources_are_seen_code_is_not_and_a_broken_one_is_broken() -> None:
    assert links(PAGE) == ["one.md", "two.png", "three.png", "four.md", "five.md", "six.svg", "seven.svg"]
    assert [target for target in NOWHERE if leads_somewhere(GUIDE, target)] == []
    assert leads_somewhere(GUIDE, "bans.md")
