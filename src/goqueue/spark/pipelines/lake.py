"""A lake: Parquet files by topic and date, which come and go as a whole, whenever the process is killed.

    topic=orders/date=2026-01-31/<archive>-<number>-<part>.parquet
    _goqueue/<archive>/<number>.json         what is to be done last: the intent
    _goqueue/owners/<topic>                  which archive writes a topic, and which topic of that name
    _goqueue/staging/<archive>/              files on their way

Whatever changes the lake is an intent first: files to be moved in, files to be deleted. Once the intent is there, under
its number, it will be carried out: now, or by the next run, which carries out the last one again; that changes nothing
if it was done. The last intent stays, because it says which batch of the stream is in. Readers may, for a moment or
between a crash and the next run, find a file beside the ones it replaces; `read` never does.

A topic, partition and offset is one message: a lake takes nothing of a topic that was deleted and created again.
"""

import socket
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DateType, StructField, StructType

from goqueue.model.errors import Conflict, DamagedData, NotFound, Unavailable
from goqueue.spark.pipelines.failpoints import failpoint
from goqueue.spark.pipelines.filesystem import FileFound, Files
from goqueue.spark.rows import full_schema

_OWN: Final = "_goqueue"
_OWNERS: Final = "owners"
_STAGING: Final = "staging"
_TRIES: Final = 20
"""How often the files of a lake are listed that others change meanwhile."""
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
    topic_id: str


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
        self._owners: dict[str, Owner] = {}
        self._journal = f"{_OWN}/{archive}"
        self._staging = f"{_OWN}/{_STAGING}/{archive}"
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

    def claim(self, topics: Mapping[str, str]) -> None:
        """Topics, by name, and which of that name. Conflict when another archive writes one of them here, or when it
        is another one than before: there would be two messages of a place."""
        for topic, topic_id in topics.items():
            if topic not in self._owners:
                self._owners[topic] = self._owner(topic, topic_id)
            owner = self._owners[topic]
            if owner.archive != self._archive:
                raise Conflict(
                    f"{topic} is archived in {self.files.root} already, by the run whose state is {owner.where}; go on "
                    "with that one (--state), or choose another lake"
                )
            if owner.topic_id != topic_id:
                raise Conflict(
                    f"{topic} was deleted and created again since {self.files.root} has messages of it, and they would "
                    "be mixed up; choose another lake, with another --state; or move "
                    f"{self.files.at(f'topic={topic}')} and {self.files.at(_owner_path(topic))} away, and go on here "
                    "with lost=skip"
                )

    def _owner(self, topic: str, topic_id: str) -> Owner:
        """Who it is; we are, if nobody is."""
        path = _owner_path(topic)
        if not self.files.exists(path):
            made = Owner(self._archive, f"{self._where} on {socket.gethostname()}", topic_id)
            failpoint("lake-unclaimed")
            self.files.create_first(path, msgspec.json.encode(made))
        return msgspec.json.decode(self.files.read(path), type=Owner)

    def publish(self, batch: int, frame: DataFrame, ids: Mapping[str, str]) -> Published:
        """The rows of a batch, once, however often it is asked for. `ids` are those of its topics."""
        if batch <= self.batch:
            return Published(0, 0, frozenset())
        staged = f"{self._staging}/{uuid.uuid4().hex}"
        dated = frame.withColumn("date", f.to_date("timestamp"))
        dated.coalesce(self._spark.sparkContext.defaultParallelism).write.partitionBy("topic", "date").parquet(
            self.files.at(staged)
        )
        failpoint("archive-staged")
        moves = self._moves(staged)
        topics = {target.partition("/")[0].removeprefix("topic=") for _, target in moves}
        self.claim({topic: ids[topic] for topic in topics})
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
        return self._load(paths).count() if paths else 0


def _last_intent(files: Files, journal: str) -> Intent:
    found = [each.path for each in files.list(journal) if each.path.endswith(".json")]
    return msgspec.json.decode(files.read(found[-1]), type=Intent) if found else _NOTHING


def _parquet(found: Iterable[FileFound]) -> list[FileFound]:
    return [each for each in found if each.path.endswith(".parquet")]


def load(spark: SparkSession, files: Files, paths: list[str]) -> DataFrame:
    return spark.read.schema(SCHEMA).option("basePath", files.root).parquet(*map(files.at, paths))


def _owner_path(topic: str) -> str:
    return f"{_OWN}/{_OWNERS}/{topic}"


def topic_ids(spark: SparkSession, root: str, topics: Iterable[str]) -> dict[str, str]:
    """Which topics they were whose messages a lake has; only those it knows."""
    files = Files(spark, root)
    known = [topic for topic in topics if files.exists(_owner_path(topic))]
    return {topic: msgspec.json.decode(files.read(_owner_path(topic)), type=Owner).topic_id for topic in known}


# ---------------------------------------------------------------- reading


class _Standing(NamedTuple):
    """How far an archive is."""

    intent: Intent
    is_moved: bool
    """Whether all is in that its last intent moves in."""

    @property
    def hidden(self) -> Iterable[str]:
        """What does not count: what it deletes, or what it has of the moves."""
        return self.intent.deletes if self.is_moved else (target for _, target in self.intent.moves)


def _standings(files: Files) -> dict[str, _Standing]:
    found = {}
    for archive in files.names(_OWN) - {_OWNERS, _STAGING}:
        intent = _last_intent(files, f"{_OWN}/{archive}")
        found[archive] = _Standing(intent, not any(files.exists(source) for source, _ in intent.moves))
    return found


def read(spark: SparkSession, root: str, topics: Iterable[str]) -> DataFrame:
    """What a lake has of some topics, each message once: of an intent half done, the new files or the old ones.

    Nothing was decided and nothing came to its end while the files were listed, or they are listed again. Rows are read
    when the frame is used; if a compaction has taken files away by then, Spark says so, and one has to read again.
    """
    files, wanted = Files(spark, root), sorted(topics)
    for _ in range(_TRIES):
        try:
            standings = _standings(files)
            hidden = {path for standing in standings.values() for path in standing.hidden}
            listed = [each.path for topic in wanted for each in _parquet(files.list(f"topic={topic}"))]
            paths = [path for path in listed if path not in hidden]
            failpoint("lake-listed")
            frame = load(spark, files, paths) if paths else None
            if _standings(files) != standings:
                continue
        except FileNotFoundError:
            continue
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            continue
        if frame is None:
            raise NotFound(f"there is nothing of {', '.join(wanted)} in {files.root}")
        return frame
    raise Unavailable(f"{files.root} changes faster than it can be listed; try again, or when its archive has stopped")
