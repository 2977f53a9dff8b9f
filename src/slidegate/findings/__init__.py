"""Findings: probable mistakes in settings, in rules, in routes, or that the first requests show. Each is reported once.

Each kind has a permanent code and a heading in `docs/reference/errors.md`. `inspection` says when each is looked for,
and what requests show; `application` is what else it looks at. The rules themselves answer what a list of
rules means, for examples of requests. Where that is not certain, nothing is reported: a false alarm is worse than
silence.
"""
