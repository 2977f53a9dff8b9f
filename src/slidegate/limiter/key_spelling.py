"""The spelling of keys in a store.

Keys are text. A key that reads as an address is that address: ``::ffff:192.0.2.7`` is ``192.0.2.7``, a bare IPv6
address means its /64, and ``2001:db8::1/128`` exactly itself. Any other key is taken as it is, up to 64 bytes; longer
keys are digested with a secret.

The secret may come later, see `secret`. Until then digests are provisional, and for a while after it came each of them
has two spellings: under the secret, and the one from before. A digest is recognised by its form, also inside a text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from ..core.addresses import canonical_key, parse_address, parse_network
from ..core.bans.in_force import MAX_KEY_BYTES, Guarded
from ..core.decision import Check
from ..core.errors import ConfigurationError, InvalidKey, quoted
from ..core.memo import MEMO_BYTES, remember, text_bytes

Known: TypeAlias = tuple[str, tuple[Guarded, ...]]
"""The spelling of a key; and its address, if it is one, because bans of networks refuse it as well."""


class KeyOf:
    """The key that a gate makes of a value, for the methods of a `Limiter`: ``header("X-API-Key").of("k123")``.

    It is spelled when a method asks for it, because a digest needs the secret of that limiter's store. Nothing shows
    the value.

    Args:
        shown: The kind of the value.
        spell: Returns the key.
        guarded: The address whose bans refuse it as well, if it is of one.
    """

    __slots__ = ("_shown", "guarded", "spell")

    def __init__(self, shown: str, spell: Callable[[Keys], str], guarded: tuple[Guarded, ...] = ()) -> None:
        self._shown = shown
        self.spell = spell
        self.guarded = guarded

    def __repr__(self) -> str:
        return f"<key {self._shown} of a value>"


AnyKey: TypeAlias = str | KeyOf
"""A key as the methods of a limiter take it."""

Question: TypeAlias = tuple[tuple[Check], tuple[Guarded, ...]]
"""A demand of one check, and the address of its key, if it is one."""

_EXPECTED: Final = 'text that is not empty, for example "user:42"'
_DIGEST: Final = re.compile("(?<=#)[0-9a-f]{32}")
_DIGEST_BYTES: Final = re.compile(b"(?<=#)[0-9a-f]{32}")


class _Spelling(NamedTuple):
    """The secret of digests. One assignment replaces it, so no thread sees half of each."""

    secret: bytes
    provisional: bool = False
    before: bytes | None = None
    """The provisional secret, as long as its digests still count."""

    @property
    def settled(self) -> bool:
        """Whether digests stay as they are, so that they can be remembered."""
        return not self.provisional and self.before is None


class Keys:
    """Spells keys.

    Args:
        secret: The key for digests; None if it comes later.

    Attributes:
        known: A memo of keys and their spellings.
        questions: A memo of a limiter, by rule, limits and key, which is emptied when another secret spells the keys.
    """

    def __init__(self, secret: bytes | None) -> None:
        self._spelling = _Spelling(os.urandom(32), True) if secret is None else _Spelling(secret)
        self.known: dict[AnyKey, Known] = {}
        self.questions: dict[str, dict[object, dict[AnyKey, Question]]] = {}
        self._digests: dict[tuple[str, bytes], str] = {}
        self._made_of: dict[str, tuple[str, bytes]] = {}
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}

    @property
    def secret(self) -> bytes:
        """The key for digests: the store's, or a provisional one."""
        return self._spelling.secret

    @property
    def provisional(self) -> bool:
        """Whether digests are made with a provisional secret, which only this process has."""
        return self._spelling.provisional

    def use(self, secret: bytes) -> None:
        """Make digests with the secret that has come, or with another one; `before` returns the old spelling."""
        old = self._spelling
        self._spelling = _Spelling(secret, before=old.secret if old.before is None else old.before)
        for memo in (self.known, self.questions, self._digests, self._before, self._after):
            memo.clear()
        # A digest that was made of other digests comes after them.
        for text, (kind, value) in self._made_of.copy().items():
            self._after[text] = _digest(secret, kind, _respelled(value, self._after))
        self._made_of.clear()

    def settle(self) -> None:
        """Forget the secret from before: nothing that was counted under its digests counts any more."""
        if not self._spelling.provisional:
            self._spelling = _Spelling(self._spelling.secret)
            self._before.clear()

    def before(self, text: str) -> str:
        """Return a key as it was spelled before the secret came."""
        return _DIGEST.sub(lambda found: self._before.get(found[0], found[0]), text)

    def checks_after(self, checks: Sequence[Check]) -> list[Check]:
        """Return checks with keys from just before the secret came in the spelling of now."""
        return [(bucket, self._now(key), cost) for bucket, key, cost in checks]

    def guarded_after(self, guarded: Sequence[Guarded]) -> list[Guarded]:
        """Return keys to guard from just before the secret came in the spelling of now; addresses stay as they are."""
        return [self._now(who) if isinstance(who, str) else who for who in guarded]

    def _now(self, text: str) -> str:
        return _DIGEST.sub(lambda found: self._after.get(found[0], found[0]), text)

    def learn(self, key: AnyKey) -> Known:
        """Spell a key.

        Raises:
            InvalidKey: `key` is not text, or empty.
        """
        if isinstance(key, KeyOf):
            return key.spell(self), key.guarded
        spelling = self._spelling
        if not isinstance(key, str) or not key:
            raise InvalidKey(f"key: expected {_EXPECTED}, not {quoted(key)}", _EXPECTED)
        text = canonical_key(key)
        encoded = text.encode(errors="surrogatepass")
        if len(encoded) > MAX_KEY_BYTES:
            text = self.digest("long", encoded)
        known = text, _guards(key)
        if spelling.settled:
            remember(self.known, key, known)
            if self._spelling is not spelling:  # another thread has changed it, and perhaps emptied the memo before
                self.known.pop(key, None)
        return known

    def digest(self, kind: str, value: bytes) -> str:
        """Return a key of at most 64 bytes for a value that must not be readable, shown as ``kind#1f3a…``."""
        known = self._digests.get((kind, value))
        return known if known is not None else self._make(self._spelling, kind, value)

    def _make(self, spelling: _Spelling, kind: str, value: bytes) -> str:
        digest = _digest(spelling.secret, kind, value)
        text = f"{kind[: MAX_KEY_BYTES - 33]}#{digest}"
        if spelling.settled:
            remember(self._digests, (kind, value), text)
            if self._spelling is not spelling:
                self._digests.pop((kind, value), None)
        elif spelling.before is None:
            if text_bytes(value) <= MEMO_BYTES:
                remember(self._made_of, digest, (kind, value))
        else:
            remember(self._before, digest, _digest(spelling.before, kind, _respelled(value, self._before)))
        return text


def _respelled(value: bytes, spellings: Mapping[str, str]) -> bytes:
    """Return a value with the digests inside it in their other spelling, as far as they have one."""
    return _DIGEST_BYTES.sub(lambda found: spellings.get(found[0].decode(), found[0].decode()).encode(), value)


def _digest(secret: bytes, kind: str, value: bytes) -> str:
    return blake2b(kind.encode() + b"\0" + value, key=secret, digest_size=16).hexdigest()


def check_secret(secret: object) -> bytes:
    """Return a secret given by the user as bytes.

    Raises:
        ConfigurationError: It is too short or too long.
    """
    try:
        encoded = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:  # half a character
        encoded = None
    if not isinstance(encoded, bytes) or not 16 <= len(encoded) <= 64:
        # A value of the wrong length may be a secret all the same, so the message does not repeat it.
        raise ConfigurationError("secret: expected 16 to 64 bytes, for example from secrets.token_hex(32)")
    return encoded


def _guards(key: str) -> tuple[Guarded, ...]:
    address = parse_address(key)
    if address is None and "/" in key:
        try:
            version, first, last = parse_network(key)
        except ConfigurationError:
            return ()
        address = (version, first) if first == last else None
    return () if address is None else (address,)
