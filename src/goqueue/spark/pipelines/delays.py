"""What became of delayed messages: a log has the time each was published with, the broker knows what happened since.

A message that was cancelled is never delivered, so it is not written again; one that was moved has another time. For
each message of a log or a lake that was delayed the broker is asked, by the task that has its row, some at a time.
Where the topic is not there any more, or is another one of the same name, nobody can be asked: the times are those that
were written.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from goqueue.client.client import AsyncClient
from goqueue.client.sync.client import Client
from goqueue.model.errors import UnknownDelay, UnknownPartition, UnknownTopic
from goqueue.model.times import parse_time
from goqueue.spark import asking
from goqueue.spark.options import Address

FATE: Final = "fate"
"""The column that is added: CANCELLED, FORGOTTEN, another word, or null for those that nobody was asked about."""
CANCELLED: Final = "cancelled"
FORGOTTEN: Final = "forgotten"
"""The broker does not have the message: it was due, or cancelled, and cleaned away."""
_ANSWER: Final = "state string, deliver_at long"
_AT_ONCE: Final = 64
"""Questions of a task that are under way together."""


class Told(NamedTuple):
    state: str
    deliver_at: int | None
    """Unix milliseconds; None if it is not known."""


class Delays:
    """Of a topic, as its broker knows them."""

    def __init__(self, client: Client, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        try:
            self._topic_id: str | None = client.describe_topic(topic).topic_id
        except UnknownTopic:
            self._topic_id = None

    def as_of_now(self, rows: DataFrame, ids: Mapping[str, str]) -> DataFrame:
        """The rows with their fate, and when each is to be delivered now. Its time to live moves with that.

        `ids` says which topic of its name they are of.
        """
        if ids[self._topic] != self._topic_id:
            return rows.withColumn(FATE, f.lit(None).cast("string"))
        address, topic = self._address, self._topic

        def ask(partitions: pa.Array, offsets: pa.Array) -> pa.Array:
            places = zip(partitions.to_pylist(), offsets.to_pylist(), strict=True)
            wanted = [(number, offset) for number, offset in places if offset is not None]
            told = iter(asyncio.run(_ask(address, topic, wanted)) if wanted else ())
            answers = [None if offset is None else next(told)._asdict() for offset in offsets.to_pylist()]
            return pa.array(answers, pa.struct([("state", pa.string()), ("deliver_at", pa.int64())]))

        asked = arrow_udf(ask, returnType=_ANSWER).asNondeterministic()  # type: ignore[call-overload] # by its hints
        is_delayed = f.col("deliver_at").isNotNull()
        answer = asked("partition", f.when(is_delayed, f.col("offset")))
        now = f.col(f"{FATE}.deliver_at")
        moved_by = now - f.unix_millis("deliver_at")
        return (
            rows.withColumn(FATE, answer)
            .withColumn(
                "expires_at",
                f.coalesce(f.timestamp_millis(f.unix_millis("expires_at") + moved_by), f.col("expires_at")),
            )
            .withColumn("deliver_at", f.coalesce(f.timestamp_millis(now), f.col("deliver_at")))
            .withColumn(FATE, f.col(f"{FATE}.state"))
        )


async def _ask(address: str, topic: str, places: list[tuple[int, int]]) -> list[Told]:
    told: list[Told] = []
    async with asking.connect_async(Address(address)) as client:
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            told += await asyncio.gather(*(_ask_one(client, topic, *place) for place in some))
    return told


async def _ask_one(client: AsyncClient, topic: str, partition: int, offset: int) -> Told:
    try:
        found = await client.get_delayed(topic, partition=partition, offset=offset)
    except (UnknownDelay, UnknownPartition, UnknownTopic):
        return Told(FORGOTTEN, None)
    return Told(found.state, parse_time(found.deliver_at))
