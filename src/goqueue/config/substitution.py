"""`${NAME}` and `${NAME:default}` in a value of a file: the environment's text, put in after the YAML was read.

So what a variable holds never becomes structure. A variable that is set counts, even when it is empty. `$${` is how
`${` itself is written.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

_PLACE: Final = re.compile(r"\$\$\{|\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_INSIDE: Final = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<colon>:)?(?P<default>.*)", re.DOTALL)


class Substituted(msgspec.Struct, frozen=True):
    """`wrong` says of each place what cannot be filled in there; `text` is of use only when there is none."""

    text: str
    names: frozenset[str]
    wrong: tuple[str, ...]


def substitute(text: str, environ: Mapping[str, str]) -> Substituted:
    names: set[str] = set()
    wrong: list[str] = []

    def fill(place: re.Match[str]) -> str:
        if place["inside"] is None:
            return "${"
        inside = _INSIDE.fullmatch(place["inside"])
        if not place["end"] or inside is None or (inside["default"] and not inside["colon"]) or "${" in place["inside"]:
            wrong.append(f"{place[0]!r} cannot be filled in; write ${{NAME}} or ${{NAME:default}}, or $${{ for ${{")
            return ""
        names.add(inside["name"])
        if inside["name"] in environ:
            return environ[inside["name"]]
        if inside["colon"] is None:
            name = inside["name"]
            wrong.append(f"the environment has no {name}; set it, or write a default: ${{{name}:default}}")
        return inside["default"]

    return Substituted(_PLACE.sub(fill, text), frozenset(names), tuple(wrong))
