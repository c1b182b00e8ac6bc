"""One Spark session for all tests that ask for one.

A session takes seconds to start, and each worker of a parallel run would start its own. `--dist worksteal` hands every
worker a row of tests as they were collected, and takes from the end of a row what others have time for: with the tests
of Spark in front of all others one worker gets them, and nobody takes them away.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from pyspark.sql import SparkSession

from goqueue.spark.sessions import session
from tests.chaos.spark_driver import QUICK_JAVA, SMALL, link_spark
from tests.chaos.spark_kill import Copying
from tests.spark.ahead import Slow, killing, writing_slowly
from tests.spark.desk import Desk, open_desk

QUICK_CHECKPOINTS = {
    "spark__sql__streaming__checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark__sql__streaming__checkpoint__fileChecksum__enabled": "false",
}
"""Without Hadoop's native library the usual way starts processes for every file, `chmod` and others. The queries that
are killed have the usual one."""

AHEAD = ("slow", "killed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "own_spark" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def own_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["SPARK_HOME"] = link_spark(tmp_path_factory.mktemp("spark") / "home")
    made = session(
        "tests",
        master="local[2,2]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        **SMALL,
        **QUICK_CHECKPOINTS,
        spark__driver__extraJavaOptions=QUICK_JAVA,
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, own_spark: SparkSession) -> SparkSession:
    """The session, with that under way which tests will ask for that are run today."""
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    for name in AHEAD:
        if name in asked:
            request.getfixturevalue(name)
    return own_spark


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Future[Copying]"]:
    with killing(tmp_path_factory.mktemp("killed")) as found:
        yield found


@pytest.fixture(scope="session")
def slow(own_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    with writing_slowly(own_spark, tmp_path_factory.mktemp("slow")) as found:
        yield found


@pytest.fixture(scope="session")
def desk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A broker that all tests share: their topics have names of their own."""
    with open_desk(spark, tmp_path_factory.mktemp("broker")) as made:
        yield made
