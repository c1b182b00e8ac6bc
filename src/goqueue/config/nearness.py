"""Which known name was meant by one that is not known."""

import difflib
import re
from collections.abc import Iterable
from typing import Final

_ALIKE: Final = 0.75
"""How much of two names must agree before one is taken for a slip of the other."""


def nearest(written: str, known: Iterable[str]) -> str:
    """There is always one: the name with the same last part, else the one that shares the most letters."""
    candidates = {_bare(name): name for name in known}
    asked = _bare(written)
    same_end = [name for bare, name in candidates.items() if _last(bare) == _last(asked)]
    if len(same_end) == 1:
        return same_end[0]
    return candidates[difflib.get_close_matches(asked, candidates, n=1, cutoff=0.0)[0]]


def alike(written: str, known: Iterable[str]) -> str | None:
    """The name it is most likely a slip of; None when it looks like none of them."""
    return next(iter(difflib.get_close_matches(written, known, n=1, cutoff=_ALIKE)), None)


def _bare(name: str) -> str:
    """Without what people write in different ways: data_dir and dataDir are the same."""
    return re.sub(r"[^.a-z0-9]", "", name.lower())


def _last(bare: str) -> str:
    return bare.rpartition(".")[2]
