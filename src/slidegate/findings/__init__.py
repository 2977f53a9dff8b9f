"""Findings: probable mistakes in settings, in rules, in routes, or that the first requests show. Each is told once.

Each kind has a permanent code and a heading in `docs/reference/errors.md`. `Inspection` says when each is looked for;
the other files have one subject each: settings, building, rules, routes, requests, and everybody, for a client that is
many. `decorated` remembers the functions for the finding about decorators, and `report` keeps what was found.
"""
