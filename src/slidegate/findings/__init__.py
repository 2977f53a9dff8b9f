"""Findings: probable mistakes in settings, in rules, in routes, or that the first requests show. Each is reported once.

Each kind has a permanent code and a heading in `docs/reference/errors.md`. `inspection` says when each is looked for;
`settings`, `routes` and `requests` are what it looks at. What a list of rules
means is asked of the rules themselves, for examples of requests. Where that is not certain, nothing is reported: a
false alarm is worse than silence.
"""

from __future__ import annotations

from typing import Final

CODES: Final = (
    *("SG102", "SG103", "SG104", "SG109", "SG110", "SG123", "SG126", "SG131", "SG132"),
    *("SG133", "SG134", "SG136", "SG137", "SG138", "SG139", "SG140", "SG142", "SG143"),
)
"""Every code, in the order of the page of findings."""
