"""Operators' tools below a gate, which the rules of the application leave alone.

A tool that looks after itself, such as the dashboard, carries a mark. The gate looks for marks once, among the routes
below it. From then on a request is spared where the routers lead it to a marked application, and where nothing on the
way is unknown that may have changed its path: then it ends there, whatever else may read its path.
"""

from __future__ import annotations

from typing import Final

SPARED: Final = "__slidegate_spared__"
"""The attribute of a marked application: the limiter whose bans it looks at itself."""
