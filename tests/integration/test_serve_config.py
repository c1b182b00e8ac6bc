"""`goqueue serve` and its configuration: what counts, what is refused, and that a refusal leaves nothing behind."""

import json
import os
import subprocess
from pathlib import Path

from goqueue.client.connection import Connection
from goqueue.wire.codes import CODES
from tests.support.broker import GOQUEUE, HttpClient, RunningBroker, running_broker
from tests.support.loop import run
from tests.support.patience import PATIENCE_S

FILE = """
broker:
  nodeId: from-file
storage:
  segmentSize: 8KiB
  fsync:
    mode: every
defaults:
  topic:
    partitions: 5
    retention:
      hours: 24
      bytes: 1MiB
  delivery:
    visibilityTimeout: 2m
    maxRetries: 9
    dlqEnabled: false
producer:
  lingerMs: 7
logging:
  level: debug
"""


def goqueue(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [*GOQUEUE, *words]
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_everything_that_is_wrong_is_told_at_once_and_nothing_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "goqueue.yaml"
    file.write_text("broker:\n  nodeId: a b\n  colour: red\nstorage:\n  segmentSize: 1\n")
    data_dir = tmp_path / "data"
    done = goqueue(
        "serve", "--config", str(file), "--data-dir", str(data_dir), "--http", "nonsense", "--wire", "127.0.0.1:0",
        "--peers", ":7", "--log-level", "loud", "--set", "nope=1",
        env={"GOQUEUE_STORAGE_FSYNC_MODE": "maybe", "GOQUEUE_METRICS_ADDR": "x"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    for where, what in (
        (f"{file}:2:", "broker.nodeId"),
        (f"{file}:3:", "broker.colour"),
        (f"{file}:5:", "storage.segmentSize"),
        ("environment GOQUEUE_STORAGE_FSYNC_MODE:", "storage.fsync.mode"),
        ("environment GOQUEUE_METRICS_ADDR:", "metrics.listen"),
        ("flag --http:", "broker.listeners.http"),
        ("flag --peers:", "several nodes are not built"),
        ("flag --log-level:", "logging.level"),
        ("flag --set nope:", "there is no key nope"),
    ):
        assert len([line for line in lines if where in line and what in line]) == 1, (where, lines)
    assert len(lines) == 9
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_broker_does_what_file_environment_and_flags_say(tmp_path: Path) -> None:
    file = tmp_path / "goqueue.yaml"
    file.write_text(FILE)
    env = {
        "GOQUEUE_NODE_ID": "from-environment",
        "GOQUEUE_DEFAULTS_TOPIC_RETENTION_HOURS": "12",
        "GOQUEUE_DEFAULTS_DELIVERY_MAX_RETRIES": "8",
        "GOQUEUE_LOG_LEVELS": "x",
    }
    flags = ("--config", str(file), "--set", "defaults.topic.retention.bytes=-1", "--log-level", "info")
    with running_broker(tmp_path, *flags, env=env) as broker:
        assert broker.request("GET", "/stats").body["node_id"] == "from-environment"
        created = broker.request("POST", "/topics", {"name": "orders"}).body
        config = broker.request("GET", "/topics/orders").body["config"]
        assert (created["partitions"], config["retention_hours"], config["retention_bytes"]) == (5, 12, None)
        assert (config["segment_bytes"], config["fsync"]) == (8192, "every")
        assert (config["visibility_timeout"], config["max_retries"], config["dlq_enabled"]) == ("2m", 8, False)
        named = {"name": "bills", "visibility_timeout": 5, "max_retries": 3, "dlq_enabled": True}
        broker.request("POST", "/topics", named)
        config = broker.request("GET", "/topics/bills").body["config"]
        assert (config["visibility_timeout"], config["max_retries"], config["dlq_enabled"]) == ("5s", 3, True)
        published = broker.request("POST", "/topics/orders/publish", {"value": "x"}).body
        assert published["durability"] == "durable"
        host, port = broker.wire.split(":")

        async def ask() -> dict[str, object]:
            async with await Connection.connect(host, int(port)) as connection:
                return await connection.ask(CODES["metadata"], {"topics": ["orders"]})

        assert run(ask())["producer"] == {"batch_bytes": 65536, "linger_ms": 7, "acks": 1}
        assert "the variable GOQUEUE_LOG_LEVELS sets nothing; GOQUEUE_LOG_LEVEL would" in broker.stderr


def test_what_config_show_prints_starts_the_same_broker(tmp_path: Path) -> None:
    file = tmp_path / "goqueue.yaml"
    file.write_text(FILE)
    words = (
        "--config",
        str(file),
        "--data-dir",
        str(tmp_path / "data"),
        "--http",
        ":0",
        "--wire",
        ":0",
        "--metrics",
        ":0",
    )
    shown = goqueue("config", "show", *words, "-o", "json")
    assert (shown.returncode, shown.stderr) == (0, "")
    settings = json.loads(shown.stdout)
    assert settings["broker.nodeId"] == {"value": "from-file", "source": f"{file}:3"}
    assert settings["broker.listeners.http"] == {"value": "127.0.0.1:0", "source": "flag --http"}
    assert settings["producer.acks"] == {"value": "leader", "source": "default"}
    assert not (tmp_path / "data").exists()
    again = tmp_path / "again.yaml"
    again.write_text(goqueue("config", "show", *words, "-o", "yaml").stdout)
    repeated = json.loads(goqueue("config", "show", "--config", str(again), "-o", "json").stdout)
    assert {path: one["value"] for path, one in repeated.items()} == {
        path: one["value"] for path, one in settings.items()
    }
    with running_broker(tmp_path, "--config", str(again), "--metrics", "127.0.0.1:0") as broker:
        assert broker.request("GET", "/stats").body["node_id"] == "from-file"
        with HttpClient(broker.endpoints["metrics"]) as metrics:
            assert metrics.request("GET", "/metrics").status == 200


def test_doors_can_stay_closed(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data", "--http", "off", "--metrics", "127.0.0.1:0")
    broker.start()
    assert broker.endpoints.keys() == {"wire", "metrics"}
    assert broker.client("metrics").request("GET", "/readyz").status == 200
    broker.restart("--wire", "off", "--metrics", "127.0.0.1:0", "--set", "metrics.enabled=false")
    assert broker.endpoints.keys() == {"http"}
    assert broker.request("GET", "/readyz").status == 200
    broker.stop()


def test_a_data_directory_that_is_a_file_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    doors = ("--http", "127.0.0.1:0", "--wire", "127.0.0.1:0", "--grpc", "off", "--metrics", "off")
    done = goqueue("serve", "--data-dir", str(tmp_path / "file"), *doors)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(tmp_path / "file") in line
    assert (tmp_path / "file").read_text() == "mine"
