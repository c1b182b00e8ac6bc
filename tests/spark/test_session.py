"""The session, the sources it knows, and the Java it runs on."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from goqueue import spark as spark_room
from tests.spark.desk import Desk
from tests.support.patience import PATIENCE_S


def test_workers_run_this_python(spark: SparkSession) -> None:
    assert spark.range(1).mapInArrow(_tell_version, "version string").collect()[0].version == sys.version


def _tell_version(batches):  # type: ignore[no-untyped-def]
    import pyarrow

    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"version": [sys.version]})


def test_a_thread_that_asks_for_the_session_can_write(desk: Desk) -> None:
    desk.create("threads", partitions=1)

    def write(asks: bool) -> None:
        session = spark_room.session() if asks else desk.spark
        assert session is desk.spark
        desk.write(session.range(10).selectExpr("cast(id as string) as value"), topic="threads")

    for asks in (False, True):
        with ThreadPoolExecutor(1) as pool:  # a thread of its own
            future = pool.submit(write, asks)
        if not asks:  # if this ever ends well, nobody needs to ask any more
            with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
                future.result()
    future.result()
    assert len(desk.oracle("threads")) == 10


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.delitem(sys.modules, "goqueue.spark.sessions")
    monkeypatch.delattr(spark_room, "sessions")
    with pytest.raises(ImportError, match=r"pip install 'goqueue\[spark\]'"):
        spark_room.session()
    with pytest.raises(AttributeError, match="no attribute 'sesion'"):
        _ = spark_room.sesion


@pytest.mark.long
def test_a_machine_without_java_runs_on_the_one_of_the_extra() -> None:
    program = (
        "from goqueue.spark import java; java._homes = lambda: []\n"
        "from goqueue import spark; made = spark.session(master='local[1]', spark__ui__enabled='false')\n"
        "print(made._jvm.System.getProperty('java.vendor'), made.range(1000).selectExpr('sum(id)').first()[0])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert said.stdout.split()[-1] == "499500"
