"""The jobs log: what the broker does by itself, written down before it is done. Schedules and redrives share it."""

from collections.abc import Callable, Iterable
from typing import Any

from goqueue.broker.waiting import until, while_open
from goqueue.machine.host import Host, Outcome
from goqueue.machine.shape import Machine
from goqueue.model.errors import StorageFailed
from goqueue.storage.driver import OnFailure
from goqueue.storage.log import Log
from goqueue.storage.store import Store


class JobLog:
    """Used from one event loop."""

    def __init__(
        self, store: Store, log: Log, machines: Iterable[Machine], clock: Callable[[], int], on_failure: OnFailure
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_failure = on_failure
        self.host = Host(log, machines)

    def submit(self, machine: Machine, command: Any, *, must: bool = False) -> Outcome:
        """Decide and write down. What an operator stops `must` be written, also on a full disk."""

        def work() -> Outcome:
            return self.host.submit(machine, command, self._clock())

        try:
            with while_open():
                return self._store.spending(work) if must else work()
        except StorageFailed as failure:
            self._on_failure(failure)
            raise

    async def settled(self, outcome: Outcome) -> Any:
        """The reply, or the refusal, once it is sure."""
        await self.durable(outcome.position)
        if outcome.refusal is not None:
            raise outcome.refusal
        return outcome.reply

    async def sure(self) -> None:
        """Until all that is known by now is durable: only then may it be told."""
        await self.durable(self.host.log.end_offset)

    async def durable(self, position: int) -> None:
        try:
            await until(self.host.log.durable, position)
        except StorageFailed as failure:
            self._on_failure(failure)
            raise
