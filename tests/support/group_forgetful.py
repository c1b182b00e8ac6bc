"""A broker with a planted bug: commits are answered, and do what they should, but are written nowhere.

Run as a program it is `goqueue serve` with the bug in it. Whoever looks for lost commits must find it.
"""

from typing import Any

from goqueue.cli.main import main
from goqueue.delivery.deliveries import Settle
from goqueue.delivery.sidecar import Sidecar
from goqueue.machine.host import Outcome


def plant() -> None:
    submit = Sidecar.submit

    def forget(self: Sidecar, command: Any, now: int) -> Outcome:
        if not isinstance(command, Settle):
            return submit(self, command, now)
        decision = self.deliveries.decide(command, now)
        for record in decision.records:
            self.deliveries.apply(record, self.log.end_offset)
        return Outcome(decision.reply, None, self.log.end_offset)

    Sidecar.submit = forget  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    main()
