"""A lake: Parquet files by topic and date, which come and go as a whole, whenever the process is killed.

    topic=orders/date=2026-01-31/<archive>-<number>-<part>.parquet
    _goqueue/<archive>/<number>.json         what is to be done last: the intent
    _goqueue/owners/<topic>                  which archive writes a topic
    _goqueue/staging/<archive>/              files on their way

Whatever changes the lake is an intent first: files to be moved in, files to be deleted. Once the intent is there, under
its number, it will be carried out: now, or by the next run, which carries out the last one again; that changes nothing
if it was done. The last intent stays, because it says which batch of the stream is in. Readers may, for a moment or
between a crash and the next run, find a file beside the ones it replaces; `read` never does.
"""

import socket
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DateType, StructField, StructType

from goqueue.model.errors import Conflict, DamagedData, NotFound
from goqueue.spark.pipelines.failpoints import failpoint
from goqueue.spark.pipelines.filesystem import FileFound, Files
from goqueue.spark.rows import full_schema

_OWN: Final = "_goqueue"
SCHEMA: Final = StructType([*full_schema(include_headers=True).fields, StructField("date", DateType())])
"""Every column of a message, and the day, in UTC, on which it was appended."""


class Intent(msgspec.Struct, frozen=True):
    number: int
    batch: int
    """The last one of the stream that is in when this is done."""
    moves: list[tuple[str, str]]
    deletes: list[str]


_NOTHING: Final = Intent(0, -1, [], [])


class Owner(msgspec.Struct, frozen=True):
    archive: str
    where: str


class Published(NamedTuple):
    rows: int
    files: int
    directories: frozenset[str]


class Lake:
    """As one archive sees it: it touches no file of another."""

    def __init__(self, spark: SparkSession, root: str, archive: str, where: str = "") -> None:
        """`where` is told to those who would write the same topics."""
        self._spark = spark
        self._archive = archive
        self._where = where
        self._claimed: set[str] = set()
        self._journal = f"{_OWN}/{archive}"
        self._staging = f"{_OWN}/staging/{archive}"
        self.files = Files(spark, root)
        self._last = _last_intent(self.files, self._journal)

    @property
    def batch(self) -> int:
        """The last one that is in; -1 for none."""
        return self._last.batch

    def recover(self) -> None:
        """Finish what a run before this one has begun, and remove what it left."""
        self._carry_out(self._last)
        self.files.delete(self._staging)

    def claim(self, topics: Iterable[str]) -> None:
        """Conflict when another archive writes one of the topics here: there would be two of each message."""
        for topic in {*topics} - self._claimed:
            path = f"{_OWN}/owners/{topic}"
            if not self.files.exists(path):
                made = Owner(self._archive, f"{self._where} on {socket.gethostname()}")
                self.files.create(path, msgspec.json.encode(made))
            owner = msgspec.json.decode(self.files.read(path), type=Owner)
            if owner.archive != self._archive:
                raise Conflict(
                    f"{topic} is archived in {self.files.root} already, by the run whose state is {owner.where}; go on "
                    "with that one (--state), or choose another lake"
                )
            self._claimed.add(topic)

    def publish(self, batch: int, frame: DataFrame) -> Published:
        """The rows of a batch, once, however often it is asked for."""
        if batch <= self.batch:
            return Published(0, 0, frozenset())
        staged = f"{self._staging}/{uuid.uuid4().hex}"
        dated = frame.withColumn("date", f.to_date("timestamp"))
        dated.coalesce(self._spark.sparkContext.defaultParallelism).write.partitionBy("topic", "date").parquet(
            self.files.at(staged)
        )
        failpoint("archive-staged")
        moves = self._moves(staged)
        self.claim(target.partition("/")[0].removeprefix("topic=") for _, target in moves)
        rows = self._count([source for source, _ in moves])
        if moves:
            self._decide(Intent(self._last.number + 1, batch, moves, []))
        self.files.delete(staged)
        return Published(rows, len(moves), frozenset(target.rpartition("/")[0] for _, target in moves))

    def compact(self, directories: Iterable[str], *, small_bytes: int, least: int) -> int:
        """Where there are so many small files in a directory, one instead. How many files there are fewer."""
        fewer = 0
        for directory in sorted(directories):
            small = [
                each.path
                for each in _parquet(self.files.list(directory))
                if each.size < small_bytes and each.path.startswith(f"{directory}/{self._archive}-")
            ]
            if len(small) >= max(2, least):
                fewer += self._merge(small)
        return fewer

    def _merge(self, paths: list[str]) -> int:
        staged = f"{self._staging}/{uuid.uuid4().hex}"
        merged = self._load(paths).coalesce(1).sortWithinPartitions("partition", "offset")
        merged.write.partitionBy("topic", "date").parquet(self.files.at(staged))
        moves = self._moves(staged)
        before, after = self._count(paths), self._count([source for source, _ in moves])
        if before != after:
            raise DamagedData(
                f"{len(paths)} files have {before} rows and what was made of them has {after}: left as is"
            )
        failpoint("compact-staged")
        self._decide(Intent(self._last.number + 1, self.batch, moves, paths))
        self.files.delete(staged)
        return len(paths) - len(moves)

    def _moves(self, staged: str) -> list[tuple[str, str]]:
        """Where the files of a staging directory belong."""
        number = self._last.number + 1
        sources = [each.path for each in _parquet(self.files.list(staged))]
        return [
            (source, f"{source[len(staged) + 1 :].rpartition('/')[0]}/{self._archive}-{number:08}-{part:04}.parquet")
            for part, source in enumerate(sources)
        ]

    def _decide(self, intent: Intent) -> None:
        self.files.create(f"{self._journal}/{intent.number:08}.json", msgspec.json.encode(intent))
        failpoint("lake-decided")
        before, self._last = self._last, intent
        self._carry_out(intent)
        if before.number:
            self.files.delete(f"{self._journal}/{before.number:08}.json")

    def _carry_out(self, intent: Intent) -> None:
        """As often as one likes: it is the last one."""
        for source, target in intent.moves:
            if self.files.exists(source) and not self.files.exists(target):
                self.files.move(source, target)
            failpoint("lake-moved")
        for path in intent.deletes:
            self.files.delete(path)
            failpoint("lake-deleted")

    def _load(self, paths: list[str]) -> DataFrame:
        return load(self._spark, self.files, paths)

    def _count(self, paths: list[str]) -> int:
        return self._spark.read.parquet(*map(self.files.at, paths)).count() if paths else 0


def _last_intent(files: Files, journal: str) -> Intent:
    found = [each.path for each in files.list(journal) if each.path.endswith(".json")]
    return msgspec.json.decode(files.read(found[-1]), type=Intent) if found else _NOTHING


def _parquet(found: Iterable[FileFound]) -> list[FileFound]:
    return [each for each in found if each.path.endswith(".parquet")]


def load(spark: SparkSession, files: Files, paths: list[str]) -> DataFrame:
    return spark.read.schema(SCHEMA).option("basePath", files.root).parquet(*map(files.at, paths))


def read(spark: SparkSession, root: str, topics: Iterable[str]) -> DataFrame:
    """What a lake has of some topics, each message once: of an intent half done, the new files or the old ones."""
    files = Files(spark, root)
    half_done: set[str] = set()
    for archive in {each.path.split("/")[1] for each in files.list(_OWN)} - {"owners", "staging"}:
        intent = _last_intent(files, f"{_OWN}/{archive}")
        done = all(files.exists(target) for _, target in intent.moves)
        half_done.update(intent.deletes if done else (target for _, target in intent.moves))
    wanted = tuple(f"topic={topic}/" for topic in topics)
    paths = [each.path for each in _parquet(files.list("")) if each.path.startswith(wanted)]
    if not paths:
        raise NotFound(f"there is nothing of {', '.join(topics)} in {files.root}")
    return load(spark, files, [path for path in paths if path not in half_done])
