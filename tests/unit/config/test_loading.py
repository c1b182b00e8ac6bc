"""`load`: who decides, what is refused, and that every problem is told at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from goqueue.config.addresses import Address
from goqueue.config.keys import KEYS, Key
from goqueue.config.loading import load
from goqueue.config.problems import ConfigProblems
from goqueue.config.settings import LogFormat, LogLevel, Settings
from goqueue.model import limits
from goqueue.model.publishing import Acks
from goqueue.model.settings import Fsync, LogSettings
from goqueue.model.topic import DEFAULT_PARTITIONS, TopicSettings


def loaded(
    *,
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    is_root: bool = False,
) -> Settings:
    return load(file=file, environ=environ or {}, flags=flags or {}, assignments=assignments, is_root=is_root)


def problems(**arguments: Any) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        loaded(**arguments)
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return Path("c.yaml").write_text


# --- defaults


def test_without_any_word_the_defaults_count() -> None:
    settings = loaded()
    assert (settings.node_id, settings.data_dir, settings.bind_all) == ("node-1", "./data", False)
    assert settings.listeners.http == Address("127.0.0.1", 8080)
    assert settings.listeners.wire == Address("127.0.0.1", 9001)
    assert settings.listeners.metrics == Address("127.0.0.1", 9090)
    assert settings.metrics_enabled
    assert (settings.log_level, settings.log_format) == (LogLevel.INFO, LogFormat.JSON)
    assert (settings.topic.retention_hours, settings.topic.retention_bytes) == (168, None)
    assert (settings.producer.batch_bytes, settings.producer.linger_ms) == (65536, 0)
    assert settings.producer.acks is Acks.LEADER
    assert (settings.consumer.session_timeout_ms, settings.consumer.heartbeat_interval_ms) == (30_000, 3000)
    assert (settings.consumer.max_poll_records, settings.consumer.rebalance_protocol) == (500, "cooperative")
    assert settings.warnings == ()
    assert settings.sources == {key.path: "default" for key in KEYS}


def test_the_defaults_are_those_of_a_log_and_a_topic() -> None:
    topic, log, other = loaded().topic, LogSettings(), TopicSettings()
    assert topic.partitions == DEFAULT_PARTITIONS == 3
    assert topic.segment_bytes == log.segment_bytes == other.segment_bytes
    assert topic.index_interval_bytes == log.index_interval_bytes
    assert topic.fsync is log.fsync is other.fsync is Fsync.INTERVAL
    assert topic.fsync_interval_ms == log.fsync_interval_ms
    assert (topic.retention_hours, topic.retention_bytes) == (other.retention_hours, other.retention_bytes)
    assert topic.visibility_ms == other.visibility_ms
    assert (topic.max_retries, topic.dlq_enabled) == (other.max_retries, other.dlq_enabled)


def test_root_keeps_data_where_services_do() -> None:
    assert loaded(is_root=True).data_dir == "/var/lib/goqueue"
    assert loaded(is_root=True, flags={"--data-dir": "here"}).data_dir == "here"


# --- who decides


def test_flags_win_over_the_environment_over_the_file(write: Any) -> None:
    write("broker:\n  nodeId: file\n")
    environ = {"GOQUEUE_NODE_ID": "environment"}
    flags = {"--node-id": "flag"}
    for arguments, name, source in (
        ({}, "node-1", "default"),
        ({"file": "c.yaml"}, "file", "c.yaml:2"),
        ({"file": "c.yaml", "environ": environ}, "environment", "environment GOQUEUE_NODE_ID"),
        ({"file": "c.yaml", "environ": environ, "flags": flags}, "flag", "flag --node-id"),
        (
            {"file": "c.yaml", "environ": environ, "assignments": ["broker.nodeId=set"]},
            "set",
            "flag --set broker.nodeId",
        ),
    ):
        settings = loaded(**arguments)
        assert (settings.node_id, settings.sources["broker.nodeId"]) == (name, source)


OTHER = {
    "broker.nodeId": ("other", "other"),
    "broker.dataDir": ("elsewhere", "elsewhere"),
    "broker.bindAll": ("true", True),
    "broker.listeners.http": ("[::1]:0", Address("::1", 0)),
    "broker.listeners.grpc": ("10.0.0.1:0", Address("10.0.0.1", 0)),
    "broker.listeners.wire": ("off", None),
    "http.allowedHosts": ("a.example, .b.example", ("a.example", ".b.example")),
    "http.allowedOrigins": ("https://a.example,http://localhost:3000", ("https://a.example", "http://localhost:3000")),
    "storage.segmentSize": ("1GiB", 2**30),
    "storage.indexIntervalBytes": ("8KiB", 8192),
    "storage.fsync.mode": ("every", Fsync.EVERY),
    "storage.fsync.intervalMs": ("50", 50),
    "defaults.topic.partitions": ("6", 6),
    "defaults.topic.retention.hours": ("-1", None),
    "defaults.topic.retention.bytes": ("10GB", 10**10),
    "defaults.delivery.visibilityTimeout": ("1m", 60_000),
    "defaults.delivery.maxRetries": ("0", 0),
    "defaults.delivery.dlqEnabled": ("off", False),
    "consumer.sessionTimeout": ("1m30s", 90_000),
    "consumer.heartbeatInterval": ("250ms", 250),
    "consumer.maxPollRecords": ("10000", 10_000),
    "producer.batchSize": ("16384", 16384),
    "producer.lingerMs": ("5", 5),
    "producer.acks": ("all", Acks.ALL),
    "metrics.enabled": ("false", False),
    "metrics.listen": ("10.0.0.1:9", Address("10.0.0.1", 9)),
    "logging.level": ("DEBUG", LogLevel.DEBUG),
    "logging.format": ("text", LogFormat.TEXT),
}
BUILT = [key for key in KEYS if key.built]


def value(settings: Settings, key: Key) -> object:
    found: object = settings
    for name in (key.field or "").split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("key", BUILT, ids=lambda key: key.path)
def test_every_key_is_set_by_each_of_the_ways(write: Any, key: Key) -> None:
    text, expected = OTHER[key.path]
    *sections, name = key.path.split(".")
    write("".join(f"{'  ' * depth}{section}:\n" for depth, section in enumerate((*sections, name)))[:-1] + f" '{text}'")
    ways: list[dict[str, Any]] = [
        {"file": "c.yaml"},
        {"environ": {key.variable: text}},
        {"assignments": [f"{key.path}={text}"]},
    ]
    if key.flag:
        ways.append({"flags": {key.flag: text}})
    for way in ways:
        settings = loaded(**way)
        assert value(settings, key) == expected
        assert settings.sources[key.path] != "default"


# --- what is not built


@pytest.mark.parametrize("key", [key for key in KEYS if not key.built], ids=lambda key: key.path)
def test_a_key_that_is_not_built_has_its_default_or_is_refused_by_name(key: Key) -> None:
    assert loaded(environ={key.variable: key.default}).sources[key.path] == f"environment {key.variable}"
    others = {"off": ":9300", "true": "false", "cooperative": "eager"}
    other = others.get(key.default, "17")
    expected = f"environment {key.variable}: {key.path} is {other!r}; {key.lacks}, so it must be {key.default}"
    assert problems(environ={key.variable: other}) == [expected]


@pytest.mark.parametrize("text", ["off", "", "OFF"])
def test_a_door_that_is_not_built_may_be_closed(text: str) -> None:
    loaded(flags={"--peers": text})


def test_a_default_written_in_other_words_is_the_default() -> None:
    loaded(assignments=["storage.timeIndexIntervalMs= 1000 ", "consumer.rebalanceProtocol=Cooperative"])


def test_what_is_overridden_need_not_be_built() -> None:
    loaded(environ={"GOQUEUE_PEERS_ADDR": ":9300"}, flags={"--peers": "off"})


# --- problems


def test_every_problem_is_told_at_once(write: Any) -> None:
    write("broker:\n  nodeID: a\n  listeners:\n    internal: ':9300'\nstorage:\n  segmentSize: huge\n")
    found = problems(
        file="c.yaml",
        environ={"GOQUEUE_LOG_LEVEL": "loud"},
        flags={"--http": "8080"},
        assignments=["a.b=c", "producer.acks"],
    )
    assert found == [
        "c.yaml:2: there is no key broker.nodeID; the nearest is broker.nodeId",
        "c.yaml:6: storage.segmentSize is 'huge'; it must be a size in bytes or like 64MiB, at least 4KiB and at most "
        "1GiB",
        "environment GOQUEUE_LOG_LEVEL: logging.level is 'loud'; it must be one of debug, info, warn, error",
        "flag --set a.b: there is no key a.b; the nearest is broker.bindAll",
        "flag --set producer.acks: write KEY=VALUE",
        "flag --http: broker.listeners.http is '8080'; it must be an address like 127.0.0.1:8080, :8080 or "
        "[::1]:8080, or off",
        "c.yaml:4: broker.listeners.internal is ':9300'; several nodes are not built yet, so it must be off",
    ]


def test_a_mistake_is_told_also_where_it_is_overridden() -> None:
    assert len(problems(environ={"GOQUEUE_LOG_LEVEL": "loud"}, flags={"--log-level": "info"})) == 1


def test_a_file_that_is_not_there_does_not_hide_other_problems() -> None:
    found = problems(file="/nowhere/c.yaml", flags={"--log-level": "loud"})
    assert found[0] == "/nowhere/c.yaml: cannot be read: No such file or directory"
    assert len(found) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"flags": {"--http": ":1"}, "assignments": ["broker.listeners.http=:2"]},
        {"assignments": ["broker.listeners.http=:1", "broker.listeners.http=:2"]},
    ],
)
def test_a_key_is_set_by_one_flag(arguments: dict[str, Any]) -> None:
    (found,) = problems(**arguments)
    assert found.startswith("flag --set broker.listeners.http: broker.listeners.http is set already, by flag --")


def test_an_assignment_may_hold_another_equals_sign() -> None:
    assert loaded(assignments=["broker.dataDir=a=b"]).data_dir == "a=b"


def test_a_long_value_is_not_repeated_whole() -> None:
    (found,) = problems(environ={"GOQUEUE_LOG_LEVEL": "x" * 100_000})
    assert len(found) < 300


@pytest.mark.parametrize(
    "name", ["GOQUEUE_LOG_LEVEL", "GOQUEUE_NODE_ID", "GOQUEUE_DATA_DIR", "GOQUEUE_METRICS_ENABLED"]
)
def test_an_empty_variable_is_a_value(name: str) -> None:
    (found,) = problems(environ={name: ""})
    assert "is ''; it must be" in found


# --- what goes together


def test_an_index_interval_is_not_larger_than_a_segment() -> None:
    loaded(assignments=["storage.segmentSize=4KiB", "storage.indexIntervalBytes=4KiB"])
    assert problems(assignments=["storage.segmentSize=4KiB", "storage.indexIntervalBytes=8KiB"]) == [
        "flag --set storage.indexIntervalBytes: storage.indexIntervalBytes is 8192 and storage.segmentSize 4096; "
        "the interval must not be larger than a segment"
    ]


@pytest.mark.parametrize(("session", "heartbeat"), [("1s", "999ms"), ("1h", "100ms"), ("3600", "3599s"), ("30s", "3s")])
def test_a_session_lasts_longer_than_the_time_between_two_heartbeats(session: str, heartbeat: str) -> None:
    loaded(assignments=[f"consumer.sessionTimeout={session}", f"consumer.heartbeatInterval={heartbeat}"])


@pytest.mark.parametrize("heartbeat", ["10s", "10001ms", "1h"])
def test_a_heartbeat_that_comes_too_late_for_its_session_is_refused(heartbeat: str) -> None:
    (found,) = problems(assignments=["consumer.sessionTimeout=10s", f"consumer.heartbeatInterval={heartbeat}"])
    shown = "3600s" if heartbeat == "1h" else heartbeat
    assert found == (
        f"flag --set consumer.heartbeatInterval: consumer.heartbeatInterval is {shown} and consumer.sessionTimeout "
        "10s; a heartbeat must come before the session times out, best several of them"
    )


def test_a_session_too_short_for_the_default_heartbeat_is_refused_where_it_is_written() -> None:
    (found,) = problems(environ={"GOQUEUE_CONSUMER_SESSION_TIMEOUT": "2s"})
    assert found.startswith("environment GOQUEUE_CONSUMER_SESSION_TIMEOUT: consumer.heartbeatInterval is 3s and ")


@pytest.mark.parametrize(
    ("assignment", "bounds"),
    [
        ("consumer.sessionTimeout=999ms", "at least 1s and at most 3600s"),
        ("consumer.sessionTimeout=1h1ms", "at least 1s and at most 3600s"),
        ("consumer.sessionTimeout=soon", "at least 1s and at most 3600s"),
        ("consumer.heartbeatInterval=99ms", "at least 100ms and at most 3600s"),
        ("consumer.heartbeatInterval=0", "at least 100ms and at most 3600s"),
        ("defaults.delivery.visibilityTimeout=0", "at least 1ms and at most 43200s"),
        ("defaults.delivery.visibilityTimeout=12h1ms", "at least 1ms and at most 43200s"),
        ("defaults.delivery.maxRetries=-1", "at least 0 and at most 1000"),
        ("defaults.delivery.maxRetries=1001", "at least 0 and at most 1000"),
        ("defaults.delivery.dlqEnabled=maybe", "true or false"),
        ("consumer.maxPollRecords=0", "at least 1 and at most 10000"),
        ("consumer.maxPollRecords=10001", "at least 1 and at most 10000"),
    ],
)
def test_what_consumers_and_topics_are_told_has_its_bounds(assignment: str, bounds: str) -> None:
    (found,) = problems(assignments=[assignment])
    path, _, text = assignment.partition("=")
    assert found.startswith(f"flag --set {path}: {path} is {text!r}; it must be ")
    assert found.endswith(bounds)


def test_the_bounds_are_those_of_the_product() -> None:
    shortest = loaded(assignments=["consumer.sessionTimeout=1s", "consumer.heartbeatInterval=100ms"]).consumer
    longest = loaded(assignments=["consumer.sessionTimeout=1h", "consumer.maxPollRecords=10000"]).consumer
    assert shortest.session_timeout_ms == limits.MIN_SESSION_MS
    assert longest.session_timeout_ms == limits.MAX_SESSION_MS
    assert longest.max_poll_records == limits.MAX_POLL_MESSAGES


@pytest.mark.parametrize(("visibility", "retries"), [("1ms", "0"), ("12h", "1000")])
def test_defaults_of_delivery_at_their_bounds_are_good_for_a_topic(visibility: str, retries: str) -> None:
    topic = loaded(
        assignments=[f"defaults.delivery.visibilityTimeout={visibility}", f"defaults.delivery.maxRetries={retries}"]
    ).topic
    TopicSettings(visibility_ms=topic.visibility_ms, max_retries=topic.max_retries).check()


@pytest.mark.parametrize("word", ["eager", "range", ""])
def test_partitions_move_in_one_way_only(word: str) -> None:
    assert problems(environ={"GOQUEUE_CONSUMER_REBALANCE_PROTOCOL": word}) == [
        f"environment GOQUEUE_CONSUMER_REBALANCE_PROTOCOL: consumer.rebalanceProtocol is {word!r}; consumers keep the "
        "partitions that do not move, there is no other way, so it must be cooperative"
    ]


@pytest.mark.parametrize("wire", [":8080", "0.0.0.0:8080"])
def test_two_doors_need_two_ports(wire: str) -> None:
    (found,) = problems(flags={"--wire": wire})
    assert found.startswith("flag --wire: broker.listeners.http is 127.0.0.1:8080 and broker.listeners.wire ")
    assert found.endswith("give each a port of its own, or 0 for a free one")


def test_a_clash_with_a_default_names_who_caused_it() -> None:
    (found,) = problems(flags={"--http": ":9001"})
    assert found.startswith("flag --http: broker.listeners.http is 127.0.0.1:9001 and ")


def test_several_doors_may_ask_for_a_free_port() -> None:
    settings = loaded(flags={"--http": ":0", "--grpc": ":0", "--wire": ":0", "--metrics": ":0"})
    assert settings.listeners.http == settings.listeners.grpc == settings.listeners.wire == Address("127.0.0.1", 0)


def test_without_metrics_their_door_is_closed_and_the_reason_named() -> None:
    settings = loaded(environ={"GOQUEUE_METRICS_ENABLED": "false", "GOQUEUE_METRICS_ADDR": ":8080"})
    assert settings.listeners.metrics is None
    assert settings.sources["metrics.listen"] == "environment GOQUEUE_METRICS_ENABLED"


# --- warnings


def test_a_door_without_a_host_is_for_this_machine_only_unless_told() -> None:
    assert loaded(flags={"--http": ":80"}).listeners.http == Address("127.0.0.1", 80)
    assert loaded(flags={"--http": ":80", "--bind-all": "true"}).listeners.http == Address("0.0.0.0", 80)


def test_an_open_door_is_a_loud_warning() -> None:
    (warning,) = loaded(flags={"--http": "0.0.0.0:80"}).warnings
    assert warning.startswith("OPEN TO THE NETWORK, WITHOUT AUTHENTICATION: broker.listeners.http on 0.0.0.0:80. ")
    (warning,) = loaded(environ={"GOQUEUE_BIND_ALL": "1"}).warnings
    assert warning.count(" on 0.0.0.0:") == 4


def test_a_door_of_this_machine_stays_one_when_others_open() -> None:
    (warning,) = loaded(flags={"--bind-all": "true", "--http": "localhost:80", "--metrics": "off"}).warnings
    assert "http" not in warning


def test_a_variable_that_sets_nothing_is_a_warning() -> None:
    settings = loaded(
        environ={
            "GOQUEUE_DATADIR": "x",
            "GOQUEUE_PORT": "tcp://10.0.0.1:8080",
            "GOQUEUE_SERVICE_HOST": "10.0.0.1",
            "GOQUEUE_PORT_8080_TCP_PROTO": "tcp",
            "PATH": "/bin",
        }
    )
    assert settings.data_dir == "./data"
    assert settings.warnings == (
        "the variable GOQUEUE_DATADIR sets nothing; GOQUEUE_DATA_DIR would",
        "these variables set nothing, GoQueue has none of these names: "
        "GOQUEUE_PORT, GOQUEUE_PORT_8080_TCP_PROTO, GOQUEUE_SERVICE_HOST",
    )


def test_variables_of_the_build_and_of_the_file_are_no_reason_to_warn(write: Any) -> None:
    write("broker:\n  nodeId: ${GOQUEUE_MY_NAME:x}\n")
    environ = {"GOQUEUE_CODEC": "python", "GOQUEUE_REQUIRE_COMPILED": "1", "GOQUEUE_MY_NAME": "mine"}
    settings = loaded(file="c.yaml", environ=environ)
    assert (settings.node_id, settings.warnings) == ("mine", ())
