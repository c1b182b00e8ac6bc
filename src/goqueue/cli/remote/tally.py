"""What became of the messages of one `produce`: a receipt each, or sums."""

import time
from typing import TYPE_CHECKING, Any, Final

from goqueue.cli.output import complain, emit, printable, say, screen, show_count, show_offsets, show_size
from goqueue.cli.remote.chosen import OutputFormat, output
from goqueue.cli.remote.message_options import lane_name
from goqueue.cli.remote.showing import print_data, seconds, when
from goqueue.model.errors import GoQueueError
from goqueue.model.times import show_time

if TYPE_CHECKING:
    from goqueue.client.receipts import Outcome, Receipt

_ID_WIDTH: Final = 7
"""Of the word message, which stands above ids."""


class Tally:
    """`sent` are those the broker has; `failed` those it refused, or nobody knows of."""

    def __init__(self, topic: str, input_bytes: int | None = None) -> None:
        self.topic = topic
        self.input_bytes = input_bytes
        """How many there are to read, if that is known."""
        self.sent = 0
        self.failed = 0
        self.taken = 0
        self.bytes = 0
        self.many = False
        self.first_error: GoQueueError | None = None
        self.partitions: dict[int, list[int]] = {}
        """Count, first and last offset of each; offsets are -1 where nobody said."""
        self._begun = time.monotonic()
        self.ended: float | None = None

    def took(self, messages: int, input_bytes: int) -> None:
        self.taken += messages
        self.bytes += input_bytes

    def add_outcome(self, outcome: "Outcome") -> None:
        """Of a batch, as the client's producer tells it. Who gets a receipt hears of its failure there."""
        if outcome.error is None:
            self._count(outcome.partition, outcome.messages, outcome.first_offset)
        elif self.many:
            self.failed += outcome.messages
            self.first_error = self.first_error or outcome.error

    def _count(self, partition: int, messages: int, first: int | None) -> None:
        self.sent += messages
        known = self.partitions.setdefault(partition, [0, -1, -1])
        known[0] += messages
        if first is not None:
            known[1] = first if known[1] < 0 else min(known[1], first)
            known[2] = max(known[2], first + messages - 1)

    def conclude(self, *, as_data: bool) -> None:
        """Sums, where there are no receipts."""
        elapsed = max((self.ended or time.monotonic()) - self._begun, 1e-6)
        if as_data:
            print_data(self._summary(elapsed))
        elif self.many:
            say(
                f"{self.topic}: {show_count(self.sent, 'message')} ({show_size(self.bytes)}) in {seconds(elapsed)}, "
                f"{self.sent / elapsed:,.0f} a second"
            )
            for number, (count, first, last) in sorted(self.partitions.items()):
                where = f", offsets {show_offsets(first, last + 1)}" if first >= 0 else ""
                say(f"  partition {number}: {show_count(count, 'message')}{where}")
        if self.many and self.failed:
            complain(f"{show_count(self.failed, 'message')} not published: {self.first_error}")

    def _summary(self, elapsed: float) -> dict[str, Any]:
        partitions = {
            str(number): {"messages": count, **({"first_offset": first, "last_offset": last} if first >= 0 else {})}
            for number, (count, first, last) in sorted(self.partitions.items())
        }
        return {
            "topic": self.topic,
            "messages": self.sent,
            "failed": self.failed,
            "bytes": self.bytes,
            "seconds": round(elapsed, 6),
            "rate": round(self.sent / elapsed, 1),
            "partitions": partitions,
        }


def result_of(receipt: "Receipt | GoQueueError", options: dict[str, Any]) -> dict[str, Any]:
    """A receipt as the API answers it, of a message that was sent with these options."""
    if isinstance(receipt, GoQueueError):
        return {"error": str(receipt), "code": receipt.code, "retriable": receipt.retriable}
    lane = lane_name(str(options.get("priority", "normal")))
    found: dict[str, Any] = {"partition": receipt.partition, "priority": lane, "durability": receipt.durability}
    if receipt.offset is not None:
        found |= {"offset": receipt.offset, "message_id": receipt.message_id}
    if receipt.timestamp:
        found["timestamp"] = show_time(receipt.timestamp)
        due = options.get("deliver_at", receipt.timestamp + round(1000 * options.get("delay", 0)))
        if due > receipt.timestamp:
            found |= {"delayed": True, "deliverAt": show_time(due)}
    return {**found, "duplicate": True} if receipt.duplicate else found


class Receipts:
    """One line a message, as they come. `data`: as objects, where that was asked for."""

    def __init__(self, data: bool) -> None:
        self._data = data
        self._headed = False

    def print(self, results: list[dict[str, Any]]) -> None:
        if output() is not OutputFormat.TABLE:
            for result in results:
                if self._data:
                    print_data(result)
                if "error" in result:
                    complain(result["error"])
            return
        width = max([_ID_WIDTH, *(len(one.get("message_id", "")) for one in results)])
        if not self._headed:
            emit(screen().line((f"{'message'.ljust(width)}  durability  due", "bold")))
            self._headed = True
        for one in results:
            if "error" in one:
                say((f"{screen().sign('✗')} {printable(one['error'])}", "bold red"))
            else:
                name = one.get("message_id", f"partition {one['partition']}")
                say(f"{name.ljust(width)}  {one['durability'].ljust(10)}  {when(one.get('deliverAt'), 'now')}")
