"""Queries as programs, on clusters of real processes. How they are killed is in `test_writing`."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import goqueue
from goqueue.spark.java import find_java
from tests.chaos.spark_driver import QUICK_JAVA
from tests.chaos.spark_kill import Copying
from tests.docs.markdown import ROOT, blocks
from tests.support.broker import DOORS, running_broker
from tests.support.patience import PATIENCE_S, wait_until


@contextmanager
def _daemon(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A process of Spark's own, and the file it logs to."""
    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    environment = {
        **os.environ,
        "JAVA_HOME": find_java().home,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", *arguments], stdout=output, stderr=output, env=environment, cwd=folder
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait()


def _wait_for(log: Path, pattern: str) -> str:
    return wait_until(lambda: _find(log, pattern), f"{pattern} is not in {log}")


def _find(log: Path, pattern: str) -> str | None:
    found = re.search(pattern, log.read_text(errors="replace"))
    return found and found[0]


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A master and two workers."""
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        doors = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = stack.enter_context(_daemon(tmp_path, "master", f"{deploy}.master.Master", *doors))
        master = _wait_for(log, r"spark://127\.0\.0\.1:\d+")
        for number in range(2):
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"worker-{number}"))
            worker = _daemon(tmp_path, f"worker-{number}", f"{deploy}.worker.Worker", *doors, *limits, master)
            _wait_for(stack.enter_context(worker), "Successfully registered with master")
        yield master


def _copy(folder: Path, master: str) -> None:
    with running_broker(folder, *DOORS) as broker:
        copying = Copying(folder, broker.wire, master, batch=500)
        copying.fill(1500)
        copying.run(partitions=2)
        outcome = copying.outcome(0)
        assert outcome.sent == outcome.found == outcome.distinct == 1500
        assert copying.executors == 2


@pytest.mark.long
def test_a_standalone_cluster(standalone: str, tmp_path: Path) -> None:
    _copy(tmp_path, standalone)


@pytest.mark.long
def test_executors_that_are_processes_of_their_own(tmp_path: Path) -> None:
    _copy(tmp_path, "local-cluster[2,1,1024]")


@pytest.mark.long
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """A master, two workers and a job, as docs/spark.md has them."""
    found = blocks((ROOT / "docs" / "spark.md").read_text(encoding="utf-8"))
    job = next(block.text for block in found if block.language == "python")
    typed = next(block.text for block in found if block.language == "console")
    script = "".join(line.removeprefix("$ ") + "\n" for line in typed.splitlines())
    with socket.create_server(("127.0.0.1", 0)) as free:
        script = script.replace("7077", str(free.getsockname()[1])).replace("7080", "0")
    with running_broker(tmp_path, *DOORS) as broker:
        with goqueue.Client(broker.wire) as client, client.producer() as producer:
            for topic in ("orders", "totals"):
                client.create_topic(topic, partitions=4)
            for number in range(9):
                producer.enqueue("orders", f'{{"customer": "c{number % 3}", "amount": {number}}}', key=str(number))
        (tmp_path / "job.py").write_text(job.replace("127.0.0.1:9001", broker.wire))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", "-c", f"set -euo pipefail; trap 'kill $(jobs -p)' EXIT\n{script}"],
            env={**os.environ, "PATH": path, "SPARK_WORKER_DIR": str(tmp_path / "work")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert '{"cents":800}' in ended.stdout
