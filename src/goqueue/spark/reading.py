"""Reading topics: the batch reader, and the stream reader.

The driver plans: which offsets, in how many parts. Tasks read them (`spark.fetching`) and give Arrow batches
(`spark.rows`). All that goes from one to the other is in the part of a task: where the broker is, and a stretch.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from goqueue.client.sync.client import Client
from goqueue.model.errors import InvalidRequest
from goqueue.spark import asking
from goqueue.spark.asking import Extents
from goqueue.spark.fetching import DataLost, fetch
from goqueue.spark.filters import Narrowing, narrow
from goqueue.spark.options import SourceOptions
from goqueue.spark.places import Position, Stretch, admit, split, stretches, with_new
from goqueue.spark.rows import Place, Rows

log = logging.getLogger("goqueue.spark")

WAIT_S: Final = 0.5
"""How long a stream waits for messages before it says that there are none: Spark would ask again at once."""
GLANCE_S: Final = 0.025


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)
        self.stretch = stretch


def read(options: SourceOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    if not isinstance(partition, Part):  # Spark's own, when there is nothing to read
        return
    stretch, rows = partition.stretch, Rows(schema, options.json_values)
    place = Place(stretch.topic, stretch.partition)
    blocks = fetch(
        options.address,
        stretch,
        uncommitted=options.isolation == "read_uncommitted",
        fail_on_data_loss=options.fail_on_data_loss,
    )
    for block in blocks:
        batch = rows.batch(place, block, stretch.start, stretch.end)
        if batch.num_rows:
            yield batch


class BatchReader(DataSourceReader):
    """What is there now, or between two places."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        Rows(schema, options.json_values)  # what it refuses is told here, not by a task
        self._options = options
        self._schema = schema
        self.narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with asking.connect(options.address) as client:
            extents = asking.survey(client, options.subscription, options.isolation)
            start = asking.resolve(client, extents, options.start, what="startingOffsets")
            end = asking.resolve(client, extents, options.end, what="endingOffsets")
        for each in extents.undecided.values():
            log.warning("%s", each)
        if options.fail_on_data_loss:
            asking.check_start(extents, start)
        found = self.narrowing.of(stretches(start, end))
        return [Part(each) for each in split(found, least=options.min_partitions, most_records=options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._schema, partition)


class FilteringReader(BatchReader):
    """One that is told the conditions of a query. Spark refuses it in sessions that do not enable that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.narrowing = narrow(filters)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is there and what comes, one micro-batch after the other."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.start.has_latest and options.reader_name is None:
            raise InvalidRequest(
                "startingOffsets has latest: set readerName as well, a name of this query's own. Its start is kept by "
                "the broker under it; Spark would ask again after a failure of the first batch, and lose what came "
                "meanwhile"
            )
        Rows(schema, options.json_values)
        self._options = options
        self._schema = schema
        self._client: Client | None = None
        self._target: Position | None = None
        """Where it ends, when it reads what is there and no more."""
        self._last_batch_s: float | None = None
        self._told: set[str] = set()
        """What was lost, and said once."""

    # ------------------------------------------------------------------ on the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        options, client = self._options, self._connect()
        extents = asking.survey(client, options.subscription, options.isolation)
        start = asking.resolve(client, extents, options.start, what="startingOffsets")
        if options.reader_name is not None:
            start = asking.keep_start(client, options.reader_name, start, extents.start)
        return start.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._survey().end

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        began = Position.from_json(start)
        deadline, glance_s = time.monotonic() + WAIT_S, GLANCE_S
        while True:
            extents = self._survey()
            end = self._reach(began, extents)
            start_at = with_new(began, extents.start)
            ahead = sum(each.size for each in stretches(start_at, end))
            if ahead and not self._waits_for_more(ahead):
                break
            if self._target is not None or time.monotonic() >= deadline:
                return began.to_json() if ahead else end.to_json()
            time.sleep(glance_s)
            glance_s = min(2 * glance_s, WAIT_S / 2)
        self._last_batch_s = time.monotonic()
        if not isinstance(limit, ReadAllAvailable):
            if self._options.max_offsets is not None:
                end = admit(start_at, end, self._options.max_offsets)
            if self._options.max_bytes is not None:
                end = admit(start_at, end, self._options.max_bytes, extents.bytes_per_offset)
        return end.to_json()

    def _waits_for_more(self, ahead: int) -> bool:
        options = self._options
        if options.min_offsets is None or ahead >= options.min_offsets or self._target is not None:
            return False
        return self._last_batch_s is not None and time.monotonic() < self._last_batch_s + options.max_delay_s

    def _reach(self, began: Position, extents: Extents) -> Position:
        """As far as there is something, or was when it was to end; never back."""
        ids, offsets = {**extents.ids}, {topic: {**places} for topic, places in extents.latest.items()}
        for topic in asking.named(self._options.subscription):
            if topic not in ids and topic not in began.ids:
                self._lose(f"there is no topic {topic}")
        for topic, places in began.offsets.items():
            if ids.get(topic) != began.ids[topic]:
                what = "was deleted" if topic not in ids else "was deleted and created again"
                self._lose(f"the topic {topic} {what} since this query read it")
                continue
            for number, offset in places.items():
                end = offsets[topic].get(number, 0)
                if end < offset:  # what comes there now is new
                    self._lose(f"partition {number} of {topic} ends at {end}, and this query has read up to {offset}")
                offsets[topic][number] = end
        if self._target is not None:
            for topic, target in self._target.offsets.items():
                if ids.get(topic) == self._target.ids[topic]:
                    floor = began.offsets.get(topic, {})
                    offsets[topic] = {n: max(min(offsets[topic][n], end), floor.get(n, 0)) for n, end in target.items()}
            for topic in [*ids]:
                if topic not in self._target.offsets:
                    del ids[topic], offsets[topic]
        return Position(ids, offsets)

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{what}; set failOnDataLoss to false to go on with what there is")
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", what)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._survey().end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = stretches(Position.from_json(start), Position.from_json(end))
        parts = split(found, least=self._options.min_partitions, most_records=self._options.max_records)
        return [Part(each) for each in parts]

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _survey(self) -> Extents:
        """Of what is there now: what was there when it began, and is gone, is the business of `_reach`."""
        return asking.survey(self._connect(), self._options.subscription, self._options.isolation, missing=True)

    def _connect(self) -> Client:
        if self._client is None:
            self._client = asking.connect(self._options.address)
        return self._client

    # ------------------------------------------------------------------ in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._schema, partition)
