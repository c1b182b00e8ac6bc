"""A handle is good if and only if it is of the last delivery of its message, and that was not given back since."""

from goqueue.delivery.commands import Claims
from goqueue.groups.group import Part
from sim.checkers import require
from sim.rooms.places import Places

RULE = "handles"


def check(places: Places, part: Part, claims: Claims, refused: Claims, *, lapsed: bool) -> None:
    """`places` is how it was before; `lapsed` whether a lease that has lapsed will do."""
    for poll, offsets in claims.items():
        for offset in offsets:
            good = places.settler(offset, lapsed=lapsed) == poll
            taken = offset not in refused.get(poll, ())
            what = "taken" if taken else "refused"
            require(good is taken, RULE, f"the handle of poll {poll} for offset {offset} of {part} is {what}")
