"""A broker with a planted bug: commits are answered, and do what they should, but are written nowhere.

Run as a program it is `goqueue serve` with the bug in it. Whoever looks for lost commits must find it.
"""

from collections.abc import Callable
from typing import Any

from goqueue.cli.main import main
from goqueue.delivery.commands import Settle
from goqueue.delivery.sidecar import Sidecar
from goqueue.machine.host import Outcome


def plant(is_forgotten: Callable[[Sidecar, Any], bool]) -> None:
    """It is asked for every command."""
    submit = Sidecar.submit

    def forget(self: Sidecar, command: Any, *, wall: int, now: int) -> Outcome:
        if not is_forgotten(self, command):
            return submit(self, command, wall=wall, now=now)
        decision = self.deliveries.decide(command, wall)
        for record in decision.records:
            self.deliveries.apply(record, self.log.end_offset)
        self.deliveries.arm(now)
        return Outcome(decision.reply, None, self.log.end_offset)

    Sidecar.submit = forget  # type: ignore[method-assign]


if __name__ == "__main__":
    plant(lambda _, command: isinstance(command, Settle))
    main()
