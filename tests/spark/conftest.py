"""One Spark session for all tests that ask for one.

A session takes seconds to start, and each worker of a parallel run would start its own. `--dist worksteal` hands every
worker a row of tests as they were collected, and takes from the end of a row what others have time for: with the tests
of Spark in front of all others one worker gets them, and nobody takes them away.
"""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from goqueue.spark.sessions import session
from tests.chaos.spark_driver import QUICK_JAVA, link_spark
from tests.spark.desk import Desk, open_desk

SMALL = {
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
}
"""For frames of some hundred rows: compiling a query takes longer than running it. Programs of their own, as those of
the documents, do without."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["SPARK_HOME"] = link_spark(tmp_path_factory.mktemp("spark") / "home")
    made = session(
        "tests",
        master="local[2,3]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        **SMALL,
        spark__driver__extraJavaOptions=QUICK_JAVA,
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def desk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A broker that all tests share: their topics have names of their own."""
    with open_desk(spark, tmp_path_factory.mktemp("broker")) as made:
        yield made
