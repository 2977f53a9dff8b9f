"""The parameters of the admin API: read by one description, from which the OpenAPI document is made as well.

A value that cannot be used is answered with 422, which names the parameter, the value and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from ..core.errors import ConfigurationError, closest, quoted
from ..core.limits import MAX_AMOUNT

Kind: TypeAlias = Literal["text", "whole", "choice"]
Values: TypeAlias = dict[str, Any]

MAX_TEXT: Final = 1_024
MAX_CURSOR: Final = 4_096
MAX_ERRORS: Final = 20
"""How many errors one answer names."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query, or a field of a body.

    Attributes:
        name: Its name.
        description: One sentence for the document.
        kind: ``"text"``, ``"whole"`` (a number without a fraction) or ``"choice"``.
        required: Whether it has to be there.
        default: Its value where it is left out.
        choices: The values of a choice.
        least: The least whole number.
        most: The largest whole number, or the largest number of characters of a text.
        example: A value that works.
        blank: Whether a text may be empty.
        secret: Whether the value must not be repeated.
    """

    name: str
    description: str
    kind: Kind = "text"
    required: bool = False
    default: str | int | None = None
    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = MAX_TEXT
    example: str | int = ""
    blank: bool = False
    secret: bool = False

    def read(self, given: object) -> str | int:
        """Return a value as it is used.

        Args:
            given: The value as it came: out of a query it is text, out of a body whatever JSON has.

        Raises:
            ValueError: It cannot be used; the message says what was expected.
        """
        if self.kind == "whole":
            return self._whole(given)
        if not isinstance(given, str):
            seen = "another kind of value" if self.secret else quoted(given)
            raise ValueError(f"expected text, for example {str(self.example)!r}, not {seen}")
        if self.kind == "choice":
            if given not in self.choices:
                hint = closest(given[:64], self.choices)
                raise ValueError(f"expected one of {', '.join(self.choices)}, not {quoted(given)}{hint}")
            return given
        if not given and not self.blank:
            raise ValueError(f"expected text that is not empty, for example {str(self.example)!r}")
        if len(given) > self.most:
            raise ValueError(f"expected at most {self.most} characters, not {len(given)}")
        return given

    def _whole(self, given: object) -> int:
        expected = f"expected a whole number, {self.least} to {self.most}, for example {self.example}"
        if isinstance(given, str) and len(given) <= 20 and given.isascii() and given.isdigit():
            given = int(given)
        elif isinstance(given, float) and given.is_integer():
            given = int(given)  # JSON has one kind of number
        if isinstance(given, bool) or not isinstance(given, int) or not self.least <= given <= self.most:
            raise ValueError(f"{expected}, not {quoted(given)}")
        return given

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the value."""
        schema: dict[str, Any]
        if self.kind == "whole":
            schema = {"type": "integer", "minimum": self.least, "maximum": self.most}
        elif self.kind == "choice":
            schema = {"type": "string", "enum": list(self.choices)}
        else:
            schema = {"type": "string", "maxLength": self.most, **({} if self.blank else {"minLength": 1})}
        if self.default is not None:
            schema["default"] = self.default
        if self.example != "":
            schema["examples"] = [self.example]
        return schema


class Unusable(ConfigurationError):
    """Values of a request that cannot be used.

    Attributes:
        errors: (name, message) of each of them, 20 at most.
    """

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        self.errors = tuple(errors[:MAX_ERRORS])
        super().__init__("; ".join(f"{name}: {message}" for name, message in self.errors))


def read_values(parameters: Sequence[Parameter], given: Iterable[tuple[str, object]]) -> Values:
    """Return the value of each parameter.

    Args:
        parameters: The parameters that there are.
        given: The names and values of a request.

    Raises:
        Unusable: A name is unknown or comes twice, a value cannot be used, or one is missing.
    """
    known = {parameter.name: parameter for parameter in parameters}
    values: Values = {}
    errors: list[tuple[str, str]] = []
    seen: set[str] = set()
    for name, value in given:
        parameter = known.get(name)
        if parameter is None:
            errors.append((quoted(name), f"there is no such parameter{closest(name[:64], known)}"))
        elif name in seen:
            errors.append((name, "it comes twice; give it once"))
        else:
            seen.add(name)
            try:
                values[name] = parameter.read(value)
            except ValueError as error:
                errors.append((name, str(error)))
        if len(errors) >= MAX_ERRORS:
            break
    for name, parameter in known.items():
        if name not in seen and parameter.required:
            errors.append((name, f"it is missing; for example {parameter.example!r}"))
        elif name not in values:
            values[name] = parameter.default
    if errors:
        raise Unusable(errors)
    return values


def fields_of(body: object) -> list[tuple[str, object]]:
    """Return the fields of a JSON body.

    Raises:
        Unusable: It is no object.
    """
    if not isinstance(body, Mapping):
        raise Unusable([("body", f"expected a JSON object, not {quoted(body)}")])
    return list(body.items())


KEY: Final = Parameter(
    "key",
    "A key as stores hold it (`user:42`, `header:X-API-Key#1f3a…`), an address, or a network.",
    required=True,
    example="203.0.113.7",
)
TARGET: Final = Parameter(
    "target",
    "An address, a network, or a key as stores hold it.",
    required=True,
    example="203.0.113.7",
)
DURATION: Final = Parameter(
    "duration",
    "How long from now, up to 400 days, or `permanent`.",
    required=True,
    most=64,
    example="1h",
)
REASON: Final = Parameter(
    "reason", "For the operator; clients do not see it.", default="", example="scanner", blank=True
)
CURSOR: Final = Parameter("cursor", "The `next` of the page before.", most=MAX_CURSOR)
UNITS: Final = Parameter("units", "How many units to charge.", "whole", True, most=MAX_AMOUNT, example=1)


def page_size(default: int, most: int) -> Parameter:
    """Return the parameter for the number of entries of a page."""
    return Parameter("limit", "How many entries to return.", "whole", default=default, most=most, example=default)


def window(default: str) -> Parameter:
    """Return the parameter for the time that figures are about."""
    return Parameter("window", "How far back to look.", "choice", default=default, choices=WINDOWS, example=default)


WINDOWS: Final = ("1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h")
