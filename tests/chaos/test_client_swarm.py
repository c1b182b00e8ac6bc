"""The client swarm as a test: a round in the suite, ten minutes on request; and broken brokers that it must catch."""

import os
from collections import Counter
from pathlib import Path

import pytest

from goqueue.api.operations import OPERATIONS
from tests.chaos.client_swarm import Broke, Died, Reserved, deck, run
from tests.chaos.ledger import Violation
from tests.chaos.swarm_clients import Point
from tests.support.swarm_planted import program

STUCK_S = 5.0
"""After which a broken broker is taken for stuck. One that works is given all the time there is."""
DOORS = ("http", "wire", "grpc")


def any_seed() -> int:
    return int.from_bytes(os.urandom(3), "big")


def test_clients_that_leave_at_any_point_leave_nothing_behind(tmp_path: Path) -> None:
    outcome = run(tmp_path, seed=any_seed())
    assert outcome.visits.total() == len([*deck(DOORS)])
    assert outcome.taken_back, "no member vanished with anything: little is shown"
    assert outcome.served


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_clients_that_leave_for_ten_minutes_leave_nothing_behind(tmp_path: Path) -> None:
    run(tmp_path, seed=any_seed(), seconds=600)


@pytest.mark.parametrize(
    ("planted", "door", "found"),
    [
        ("asks-late", "grpc", Died),
        ("keeps-room", "grpc", Reserved),
        ("loses-room", "grpc", Reserved),
        ("keeps-connections", "http", Reserved),
        ("keeps-messages", "wire", Reserved),
        ("breaks", "grpc", Broke),
    ],
)
def test_a_broken_broker_is_caught(tmp_path: Path, planted: str, door: str, found: type[Violation]) -> None:
    with pytest.raises(found):
        run(
            tmp_path,
            seed=any_seed(),
            rounds=12,
            share=0.25,
            doors=(door,),
            program=program(planted),
            patience_s=STUCK_S,
        )


def test_every_operation_is_left_at_every_point() -> None:
    dealt = Counter((each.door, each.operation, each.point) for each in deck(DOORS))
    for operation in OPERATIONS:
        for door in DOORS if operation.paths else ("wire", "grpc"):
            assert all(dealt[door, operation.name, point] for point in Point)
