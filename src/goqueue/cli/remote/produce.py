"""`goqueue-cli produce`: messages from the command line, standard input or a file.

A few get a receipt each; many go out in batches, and a summary says where they went. What it says is an answer of the
broker's: Ctrl-C ends the input, not what was already sent.
"""

import asyncio
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from goqueue.cli.failures import FAILED, UNPRINTED
from goqueue.cli.output import OutputFailed, complain, finish_output, note, show_count
from goqueue.cli.remote.broker import Broker, run
from goqueue.cli.remote.chosen import OutputFormat, add, chosen, output, single
from goqueue.cli.remote.feed import STANDARD_INPUT, FileSource, fed, read_whole, size_of, standard_input
from goqueue.cli.remote.message_options import Headers, Key, Partition, Priority, Ttl, header_pairs, lane_name, ttl_ms
from goqueue.cli.remote.message_rows import unescaped
from goqueue.cli.remote.names import Topic, option
from goqueue.cli.remote.outgoing import Batch, Outgoing, from_contents, from_json_lines, from_lines
from goqueue.cli.remote.showing import hint
from goqueue.cli.remote.tally import Receipts, Tally, result_of
from goqueue.cli.remote.typed import typed_duration, typed_time
from goqueue.model.errors import BufferFull, GoQueueError, InvalidRequest
from goqueue.model.times import parse_time
from goqueue.wire.shapes.messages import AcksName

if TYPE_CHECKING:
    from goqueue.client.producer import AsyncProducer

app = single()

FEW: Final = 20
"""So many get a receipt each."""


def produce(
    topic: Topic,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE", help="A message; without one each line of standard input is a message."),
    ] = None,
    key: Key = None,
    key_separator: Annotated[
        str | None, option("--key-separator -K", "TEXT", "Lines are KEY, this, VALUE; \\t is a tab.")
    ] = None,
    header: Headers = None,
    priority: Priority = None,
    delay: Annotated[str | None, option("--delay", "DURATION", "Deliver so much later, like 30s or 1h30m.")] = None,
    deliver_at: Annotated[str | None, option("--deliver-at", "TIME", "Deliver at this time, or +5m from now.")] = None,
    ttl: Ttl = None,
    partition: Partition = None,
    acks: Annotated[
        AcksName, typer.Option("--acks", help="Answer when nobody has it, the leader has it, or all replicas have it.")
    ] = "leader",
    file: Annotated[
        str | None, option("--file", "FILE", "The whole file is a message; with --lines each line. - is stdin.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of the file is a message.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Each line is a message as JSON, with the fields it has over HTTP.")
    ] = False,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="No value: compaction then drops the key.")] = False,
) -> None:
    """Publish messages. A few get a receipt each, many a summary."""
    same = _same(key=key, header=header, priority=priority, delay=delay, deliver_at=deliver_at, ttl=ttl, to=partition)
    if tombstone and (values or file or json_lines or key is None):
        raise InvalidRequest("--tombstone deletes a key: give --key and no value with it")
    if values and (file or json_lines or key_separator):
        raise InvalidRequest("messages are named here, or read from somewhere; not both")
    if lines and not file:
        raise InvalidRequest("--lines goes with --file; lines of standard input are messages anyway")
    separator = None if key_separator is None else unescaped(key_separator)
    if separator is not None and (not separator or json_lines or key is not None):
        raise InvalidRequest("--key-separator is some text between key and value; not with --key or --json-lines")
    tally = Tally(topic, size_of(file))
    source = _source(values, file, lines, json_lines, tombstone, separator, same)
    named = bool(values) or tombstone or (file is not None and not lines and not json_lines)
    try:
        try:
            run(lambda broker: _publish(broker, topic, acks, source, tally, named))
        except (GoQueueError, typer.Exit) as error:
            if tally.sent or tally.failed:
                _conclude(tally, named)
            if tally.sent and isinstance(error, GoQueueError):  # a part of it worked
                complain(str(error))
                raise typer.Exit(FAILED) from None
            raise
        _conclude(tally, named)
        if not tally.taken and output() is OutputFormat.TABLE:
            note(f"there was nothing to read; nothing was published to {topic}")
    except OutputFailed as error:
        if error.reader_left or not tally.sent:
            raise
        said = f"{show_count(tally.sent, 'message')} published, only the answer could not be printed"
        complain(f"{said} ({error}): do not do it again")
        raise typer.Exit(UNPRINTED) from error
    if tally.failed:
        raise typer.Exit(FAILED)


def _same(
    *, key: str | None, header: list[str] | None, priority: str | None, delay: str | None, deliver_at: str | None,
    ttl: str | None, to: int | None,
) -> dict[str, Any]:  # fmt: skip
    """What all messages have in common, as the client's producer takes it."""
    if delay is not None and deliver_at is not None:
        raise InvalidRequest("--delay and --deliver-at say the same in two ways; give one of them")
    due = typed_time("--deliver-at", deliver_at)
    fields: dict[str, Any] = {
        "key": None if key is None else key.encode("utf-8", "surrogateescape"),
        "headers": [(name, value.encode("utf-8", "surrogateescape")) for name, value in header_pairs(header)] or None,
        "priority": None if priority is None else lane_name(priority),
        "delay": None if delay is None else typed_duration("--delay", delay) / 1000,
        "deliver_at": None if due is None else parse_time(due),
        "ttl": None if ttl is None else ttl_ms(ttl) / 1000,
        "partition": to,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _source(
    values: list[str] | None, file: str | None, lines: bool, json_lines: bool, tombstone: bool,
    separator: bytes | None, same: dict[str, Any],
) -> Iterable[Batch]:  # fmt: skip
    if tombstone:
        return [from_contents([None], same)]
    if values:
        return [from_contents([value.encode("utf-8", "surrogateescape") for value in values], same)]
    if file is not None and not lines and not json_lines:
        return [from_contents([read_whole(file)], same)]
    source = standard_input() if file in (None, STANDARD_INPUT) else FileSource(file or "")
    if json_lines:
        return from_json_lines(source, same)
    return from_lines(source, same, separator=separator)


def _conclude(tally: Tally, named: bool) -> None:
    """Say what is in the broker now, also when something stopped it half-way."""
    tally.conclude(as_data=output() is not OutputFormat.TABLE and not named)
    finish_output()


async def _publish(broker: Broker, topic: str, acks: str, source: Iterable[Batch], tally: Tally, named: bool) -> None:
    from goqueue.cli.progress import Meter  # slow to load

    await broker.call("describe_topic", topic=topic)  # a name that is wrong is said before anything is typed
    if not named and sys.stdin is not None and sys.stdin.isatty() and output() is OutputFormat.TABLE:
        note("each line is a message; Ctrl-D ends it")
    receipts = Receipts(named)
    async with broker.client() as client:
        producer = client.producer(acks=acks, delivery_timeout=chosen().timeout_s, on_batch=tally.add_outcome)
        try:
            with Meter(f"publishing to {topic}", tally.input_bytes) as meter:
                async for batch in fed(source):
                    tally.took(len(batch.messages), batch.input_bytes)
                    if named or tally.taken <= FEW:
                        await _publish_few(producer, topic, batch.messages, tally, receipts)
                    else:
                        tally.many = True
                        await _publish_many(producer, topic, batch.messages)
                        meter.advance(batch.input_bytes)
        finally:  # what was taken in is seen through, also after Ctrl-C
            try:
                await producer.close()
            except GoQueueError as error:
                tally.first_error = tally.first_error or error
            tally.ended = time.monotonic()
    if named and tally.sent == 1 and not tally.failed:
        hint(f"goqueue-cli consume {topic}")


async def _publish_few(
    producer: "AsyncProducer", topic: str, messages: list[Outgoing], tally: Tally, receipts: Receipts
) -> None:
    sent = (producer.send(topic, value, **options) for value, options in messages)
    found = await asyncio.gather(*sent, return_exceptions=True)
    results = []
    for receipt, message in zip(found, messages, strict=True):
        if isinstance(receipt, GoQueueError):
            tally.failed += 1
            if len(messages) == 1:
                raise receipt
        elif isinstance(receipt, BaseException):
            raise receipt
        results.append(result_of(receipt, message.options))
    if results:
        receipts.print(results)


async def _publish_many(producer: "AsyncProducer", topic: str, messages: list[Outgoing]) -> None:
    for value, options in messages:
        while True:
            try:
                producer.enqueue(topic, value, **options)
                break
            except BufferFull:
                await producer.room()
    await asyncio.sleep(0)


add(app, produce=produce)
