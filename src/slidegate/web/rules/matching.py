"""Matches requests with rules: limits match generously, exemptions strictly.

A limit applies if one reading of the path leads to the rule's own path, an exemption only if every reading does. Where
the routes below are known, an odd reading counts only where the rule's path could mean the route that the
request reaches. An ordinary path has one reading, and the routes are not asked.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from ..paths.below_root import below
from ..paths.readings import LONGEST, Written, is_odd, readings
from ..paths.segments import overlap, segments
from ..paths.tree import Reached, Tree
from .rule import Rule


class Sight:
    """One request, as rules see it.

    Args:
        scope: The ASGI scope of the request.
        tree: The routes below the gate.

    Attributes:
        endless: Whether the path is odd and too long to be read: it may mean any path.
    """

    __slots__ = (
        "_asked", "_direct", "_every", "_method", "_odd", "_ordinary", "_path", "_prefix", "_reached", "_scope",
        "_tree", "_type", "endless",
    )  # fmt: skip

    def __init__(self, scope: Scope, tree: Tree) -> None:
        self._scope = scope
        self._tree = tree
        self._asked = False
        self._reached: Reached | None = None
        self._type: str = scope["type"]
        self._method: str = scope.get("method", "GET")
        path: str = scope["path"]
        given: str = scope.get("root_path", "")
        root = tree.root or given
        # A rule may be written with the root, but not with the part of a path that a mount has read.
        self._prefix = "" if "app_root_path" in scope else root
        self._path = here = below(root, path) if root else path
        self._every: tuple[str, ...] = (here,)
        self._direct: tuple[str, ...] = (here,)
        self._odd: tuple[str, ...] = ()
        self.endless = False
        clear = not root or (here != path and tree.known(scope))
        self._ordinary = clear and not (tree.rooted or is_odd(here) or (here[-1:] == "/" and here != "/"))
        if not self._ordinary:
            self._look(path, given, root)

    def _look(self, path: str, given: str, root: str) -> None:
        """Find all readings, and ask the routes where they can say more."""
        here, as_given = self._path, below(given, path)
        if len(path) > LONGEST and is_odd(path):
            # Working out every reading costs more than it is worth: no honest client sends such a path.
            self.endless = True
            return
        self._every = readings(here)
        if here != as_given:
            self._direct = (here, as_given)
        self._odd = (*self._every[1:], *readings(as_given)[1:])
        if given and not self._tree.known(self._scope):
            # The unknown application may look at the path with its root.
            self._odd += readings(path)
        # Files are found with a slash at their end too; a mount reads a path anew that does not begin with its root.
        odd = len(self._every) > 1 or (here[-1:] == "/" and here != "/")
        if (odd or self._tree.rooted or (root and here == path)) and self.reached is not None:
            self._direct = (*self._direct, self.reached.text)
            if self.reached.text != here.rstrip("/"):
                self._every = (*self._every, self.reached.text)

    def texts(self) -> Iterable[str]:
        """Return every text that a rule's path is compared with; a rule that matches none of them cannot apply."""
        if not (self._odd or self._prefix or len(self._direct) > 1):
            return self._direct
        texts = dict.fromkeys((*self._direct, *self._odd))
        return [*texts, *(self._prefix + text for text in texts)] if self._prefix else texts

    @property
    def lasting(self) -> bool:
        """Whether every request with this type, method, path and root meets the same rules."""
        return not self._asked or not self._tree.varies

    @property
    def reached(self) -> Reached | None:
        """The route that the request reaches, if the routes below say so."""
        if not self._asked:
            self._asked = True
            self._reached = self._tree.reach(self._scope)
        return self._reached

    def limited(self, rule: Rule) -> str | None:
        """Return the reading by which the limits of a rule apply; None if they do not apply."""
        if not limits_kind(rule, self._type, self._method):
            return None
        if not rule.written or self.endless:
            return self._path
        if self._ordinary and not rule.has_spellings:
            return self._limited_plainly(rule)
        for written in rule.written:
            if (read := written.meets(self._direct, self._prefix)) is not None:
                return read
        return next((read for written in rule.written if (read := self._oddly(written)) is not None), None)

    def _limited_plainly(self, rule: Rule) -> str | None:
        path, prefix = self._path, self._prefix
        for written in rule.written:
            if written.generous.match(path) is not None:
                return path
            if prefix and written.rooted(prefix) and written.generous.match(prefix + path) is not None:
                return prefix + path
        return None

    def ended(self, rule: Rule) -> bool:
        """Return whether a final rule ends the list here: every reading must lead to it."""
        if rule.methods is not None and self._method not in rule.methods:
            return False
        if rule.connection is not None and self._type != rule.connection:
            return False
        if not rule.written:
            return True
        return not self.endless and all(any(written.covers(text) for written in rule.written) for text in self._every)

    def _oddly(self, written: Written) -> str | None:
        """Return an odd reading that matches a path of a rule, if that path may mean the route that is reached."""
        texts = self._odd if written.spelled is None else [*self._direct, *self._odd]
        read = written.spells(texts, self._prefix)
        return read if read is not None and self._could_mean(written) else None

    def _could_mean(self, written: Written) -> bool:
        reached = self.reached
        if reached is None or not reached.sure or overlap(written.segments, reached.template):
            return True
        rooted = written.rooted(self._prefix)
        return rooted and overlap(written.segments, (*segments(self._prefix), *reached.template[1:]))


def limits_kind(rule: Rule, kind: str, method: str) -> bool:
    """Return whether a limit holds requests of a type and a method, in whatever case the method is sent."""
    methods = rule.methods
    if methods is not None and method not in methods and method.lower().upper() not in methods:
        return False
    return rule.connection is None or kind == rule.connection
