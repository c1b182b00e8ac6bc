"""The properties a simulated log must have, one file each.

A checker is given what the model knows (`sim.rooms.history`) and what the log shows (`Observed`), and raises
`Violation`, which names the property. It trusts nothing but bytes.
"""


class Violation(Exception):
    """A property does not hold. `rule` is the checker's name."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def require(condition: bool, rule: str, what: str) -> None:
    if not condition:
        raise Violation(rule, what)
