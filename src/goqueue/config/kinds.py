"""The kinds of value a key may have: how each is read from text, checked, and written again.

Text is all they see: a file, a variable and a flag say the same in the same words. `parse` raises ValueError for
what is not of the kind; the one who asked knows which key it was and adds `wanted`, which completes "it must be".
`plain` is the value for programs, `show` the one for people; `parse` reads both back.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from goqueue.config.addresses import CLOSED, Address, parse_address
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.times import parse_duration

NO_NAMES: Final = "none"
"""How an empty list of names is written; nothing at all means the same."""
NO_LIMIT: Final = -1
"""How "no limit" is written; inside it is None."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_SIZE: Final = re.compile(r"(-?[0-9]{1,19}) ?([a-z]*)", re.IGNORECASE)
_PREFIXES: Final = "kmgt"
_UNITS: Final[dict[str, int]] = {"": 1, "b": 1} | {
    f"{prefix}{ending}": base ** (power + 1)
    for power, prefix in enumerate(_PREFIXES)
    for ending, base in (("b", 1000), ("ib", limits.KIB))
}
_NODE_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{limits.MAX_NAME_PART - 1}}}")

Plain = str | int | bool


class Kind(ABC):
    wanted: str
    metavar: str
    """How a help page names the value."""

    @abstractmethod
    def parse(self, text: str) -> Any: ...

    def plain(self, value: Any) -> Plain:
        return str(value)

    def show(self, value: Any) -> str:
        return str(self.plain(value))


class NodeName(Kind):
    wanted = f"1 to {limits.MAX_NAME_PART} letters, digits, '.', '_' and '-', a letter or digit first"
    metavar = "NAME"

    def parse(self, text: str) -> str:
        if not _NODE_NAME.fullmatch(text):
            raise ValueError(text)
        return text


class Directory(Kind):
    """A path, relative to where the process starts. Only a shell knows what ~ is, so it is not taken for a name."""

    wanted = "the path of a directory, written out: no ~ at its beginning, no control characters"
    metavar = "DIRECTORY"

    def parse(self, text: str) -> str:
        if not text or text.startswith("~") or not text.isprintable():
            raise ValueError(text)
        return text


class Choice(Kind):
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.wanted = f"one of {', '.join(values)}" if len(values) > 1 else "".join(values)
        self.metavar = "|".join(values)

    def parse(self, text: str) -> Any:
        try:
            return self._values[text.strip().lower()]
        except KeyError:
            raise ValueError(text) from None

    def plain(self, value: Any) -> Plain:
        return next(name for name, meant in self._values.items() if meant == value)


class Switch(Kind):
    wanted = "true or false"
    metavar = "true|false"

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise ValueError(text)

    def plain(self, value: bool) -> Plain:
        return value

    def show(self, value: bool) -> str:
        return str(value).lower()


class Whole(Kind):
    """A whole number. Where it may be unlimited -1 says so, and inside that is None."""

    metavar = "NUMBER"
    _noun = "a whole number"

    def __init__(self, low: int, high: int = limits.MAX_OFFSET, *, may_be_unlimited: bool = False) -> None:
        self._low, self._high, self._may_be_unlimited = low, high, may_be_unlimited
        no_limit = f", or {NO_LIMIT} for no limit" if may_be_unlimited else ""
        most = f" and at most {self.show(high)}" if high < limits.MAX_OFFSET else ""
        self.wanted = f"{self._noun}, at least {self.show(low)}{most}{no_limit}"

    def parse(self, text: str) -> int | None:
        value = self._read(text.strip())
        if self._may_be_unlimited and value == NO_LIMIT:
            return None
        if not self._low <= value <= self._high:
            raise ValueError(text)
        return value

    def plain(self, value: int | None) -> Plain:
        return NO_LIMIT if value is None else value

    def _read(self, text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise ValueError(text)
        return int(text)


class Size(Whole):
    """A number of bytes, or one with a unit: 64MiB are 64 * 1024 * 1024 bytes, 64MB are 64 * 1000 * 1000."""

    metavar = "SIZE"
    _noun = "a size in bytes or like 64MiB"

    def show(self, value: int | None) -> str:
        for power in range(len(_PREFIXES), 0, -1):
            amount, rest = divmod(value or 0, limits.KIB**power)
            if amount and not rest:
                return f"{amount}{_PREFIXES[power - 1].upper()}iB"
        return super().show(value)

    def _read(self, text: str) -> int:
        found = _SIZE.fullmatch(text)
        if found is None or found[2].lower() not in _UNITS:
            raise ValueError(text)
        return int(found[1]) * _UNITS[found[2].lower()]


class Duration(Kind):
    """Milliseconds inside; a number without a unit is seconds."""

    wanted = "a duration like 250ms, 30s or 1h30m, or a number of seconds"
    metavar = "DURATION"

    def parse(self, text: str) -> int:
        written = text.strip()
        try:
            return parse_duration(f"{written}s" if written.isdecimal() else written)
        except InvalidRequest as error:
            raise ValueError(text) from error

    def plain(self, value: int) -> Plain:
        return f"{value}ms" if value % 1000 else f"{value // 1000}s"


class _Names(Kind):
    """Several names, with commas between them."""

    metavar = "NAME,NAME"
    _name: re.Pattern[str]

    def parse(self, text: str) -> tuple[str, ...]:
        if text.strip().lower() in ("", NO_NAMES):
            return ()
        names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
        if len(names) > limits.MAX_ALLOWED_NAMES or not all(self._name.fullmatch(name) for name in names):
            raise ValueError(text)
        return names

    def plain(self, value: tuple[str, ...]) -> Plain:
        return ",".join(value) or NO_NAMES


class Hosts(_Names):
    wanted = (
        f"names of hosts without ports, with commas between them, like queue.example.com,.example.org; * for any, or "
        f"{NO_NAMES}"
    )
    _name = re.compile(r"\*|\.?[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


class Origins(_Names):
    wanted = (
        f"origins, with commas between them, like https://console.example.com,http://localhost:3000; * for any, or "
        f"{NO_NAMES}"
    )
    _name = re.compile(
        r"\*|[a-z][a-z0-9+.-]*://[a-z0-9._-]+(?::[0-9]{1,5})?|[a-z][a-z0-9+.-]*://\[[0-9a-f:.]+\](?::[0-9]{1,5})?"
    )


class Door(Kind):
    wanted = f"an address like 127.0.0.1:8080, :8080 or [::1]:8080, or {CLOSED}"
    metavar = "ADDRESS"

    def parse(self, text: str) -> Address | None:
        return parse_address(text.strip())

    def plain(self, value: Address | None) -> Plain:
        return CLOSED if value is None else str(value)
