"""What was meant."""

import pytest

from goqueue.config.keys import BY_PATH, SECTIONS
from goqueue.config.nearness import alike, nearest


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("broker.nodeID", "broker.nodeId"),
        ("broker.data_dir", "broker.dataDir"),
        ("storage.segmentsize", "storage.segmentSize"),
        ("storage.segmentSzie", "storage.segmentSize"),
        ("partitions", "defaults.topic.partitions"),
        ("broker.wire", "broker.listeners.wire"),
        ("loging.levl", "logging.level"),
    ],
)
def test_the_nearest_key_is_the_one_meant(written: str, meant: str) -> None:
    assert nearest(written, BY_PATH) == meant


@pytest.mark.parametrize(("written", "meant"), [("brokers", "broker"), ("broker.listener", "broker.listeners")])
def test_the_nearest_section_is_the_one_meant(written: str, meant: str) -> None:
    assert nearest(written, SECTIONS) == meant


@pytest.mark.parametrize("written", ["", "<<", "ω", "x" * 1000])
def test_there_is_always_a_nearest_one(written: str) -> None:
    assert nearest(written, BY_PATH) in BY_PATH


def test_a_slip_is_told_from_a_stranger() -> None:
    assert alike("DATADIR", ["DATA_DIR", "NODE_ID"]) == "DATA_DIR"
    assert alike("SERVICE_PORT", ["DATA_DIR", "NODE_ID"]) is None
