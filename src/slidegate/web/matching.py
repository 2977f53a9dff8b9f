"""Which rules a request meets: limits match generously, exemptions strictly.

A limit applies if one reading of the path leads to the rule's own path, an exemption only if every reading does. Where
the routes below are known, an odd reading counts only where the route that the request reaches is one that the rule's
path could mean. An ordinary path has one reading, and the routes are not asked.
"""

from __future__ import annotations

from functools import cached_property

from starlette.types import Scope

from .keys import below
from .readings import Written, readings
from .rules import Rule
from .segments import overlap, segments
from .tree import Reached, Tree


class Sight:
    """One request, as rules see it.

    Args:
        scope: The request's.
        tree: The routes below the gate.
    """

    def __init__(self, scope: Scope, tree: Tree) -> None:
        self._scope = scope
        self._tree = tree
        self._asked = False
        path: str = scope["path"]
        given: str = scope.get("root_path", "")
        root = tree.root or given
        here = below(root, path)
        as_given = below(given, path)
        # What a mount has read is no part of the root that a rule may be written with.
        self._prefix = "" if "app_root_path" in scope else root
        self._every = readings(here)
        self._direct = [here] if here == as_given else [here, as_given]
        self._odd = [*self._every[1:], *readings(as_given)[1:]]
        if given and not tree.known(scope):
            # Who serves this may look at the path with its root.
            self._odd += readings(path)
        # Files are found with a slash at their end too; a mount reads a path anew that does not begin with its root.
        odd = len(self._every) > 1 or (here[-1:] == "/" and here != "/")
        if (odd or tree.rooted or (root and here == path)) and self.reached is not None:
            self._direct.append(self.reached.text)
            if self.reached.text != here.rstrip("/"):
                self._every = (*self._every, self.reached.text)

    @property
    def lasting(self) -> bool:
        """Whether every request with this type, method, path and root is seen alike."""
        return not self._asked or not self._tree.varies

    @cached_property
    def reached(self) -> Reached | None:
        """Where the request is led, if the routes below say so."""
        self._asked = True
        return self._tree.reach(self._scope)

    def limited(self, rule: Rule) -> str | None:
        """Return the reading by which a rule applies, if it does not exempt; None if it does not apply."""
        method: str = self._scope.get("method", "GET")
        if rule.methods is not None and method not in rule.methods and method.lower().upper() not in rule.methods:
            return None
        if rule.connection is not None and self._scope["type"] != rule.connection:
            return None
        if not rule.written:
            return self._direct[0]
        for written in rule.written:
            if (read := written.meets(self._direct, self._prefix)) is not None:
                return read
        return next((read for written in rule.written if (read := self._oddly(written)) is not None), None)

    def ended(self, rule: Rule) -> bool:
        """Tell whether a rule that ends the list does so here: in every reading."""
        if rule.methods is not None and self._scope.get("method", "GET") not in rule.methods:
            return False
        if rule.connection is not None and self._scope["type"] != rule.connection:
            return False
        return not rule.written or all(any(written.covers(text) for written in rule.written) for text in self._every)

    def _oddly(self, written: Written) -> str | None:
        """Return an odd reading that a path of a rule matches, where the route that is reached may be meant by it."""
        texts = self._odd if written.spelled is None else [*self._direct, *self._odd]
        read = written.spells(texts, self._prefix)
        return read if read is not None and self._could_mean(written) else None

    def _could_mean(self, written: Written) -> bool:
        reached = self.reached
        if reached is None or not reached.sure or overlap(written.segments, reached.template):
            return True
        rooted = written.rooted(self._prefix)
        return rooted and overlap(written.segments, (*segments(self._prefix), *reached.template[1:]))
