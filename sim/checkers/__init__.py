"""The properties that simulated logs and simulated groups must have, one file each.

A checker is given what a model knows (`sim.rooms.history`; for groups `ledger` and `tenures`) and what is there to be
seen (`observed`, `delivered`), and raises `Violation`, which names the property. It trusts nothing but bytes, snapshots
and who owns what.
"""


class Violation(Exception):
    """A property does not hold. `rule` is the checker's name."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def require(condition: bool, rule: str, what: str) -> None:
    if not condition:
        raise Violation(rule, what)
