"""Findings: probable mistakes in settings, in rules, in routes, or that the first requests show. Each is reported once.

Each kind has a permanent code and a heading in `docs/reference/errors.md`. `inspection` looks for them at the
start and in the first requests, with the help of `settings` and `routes`. The effect of a list of rules is determined
by matching examples of requests. An uncertain finding is not reported: a false alarm is worse than silence.
"""
