"""Deliveries at scale as tests: small forms in the suite, which count; the whole, with its limits, on request.

Limits of time, and most of memory, are for the long forms alone: a suite on all cores is no place to measure.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import pytest

from goqueue import codec
from goqueue.model.limits import MIB
from tests.chaos.spawn import ROOT
from tests.scale import burst, costly, delays, lanes, open_transactions, stopped
from tests.scale.__main__ import PARTS
from tests.scale.stage import TooSlow

T = TypeVar("T")
LEADS_S = (8.0, 40.0, 200.0)
"""How long before they are due messages are published; more where that was too little."""

pytestmark = pytest.mark.skipif(not codec.COMPILED, reason="blocks of this size need the compiled codec")


def in_time(run: Callable[[float], T]) -> T:
    for lead_s in LEADS_S[:-1]:
        try:
            return run(lead_s)
        except TooSlow:
            continue
    return run(LEADS_S[-1])


def test_fifty_thousand_delays_of_which_some_are_cancelled_or_moved_fire_once_and_on_time_after_a_kill() -> None:
    outcome = in_time(lambda lead_s: delays.run(delays.Plan(messages=50_000, lead_s=lead_s, spread_s=3)))
    assert outcome.fired == 35_000
    for figure in delays.figures(outcome):
        print(figure)


@pytest.mark.parametrize("cold", [False, True])
def test_a_burst_comes_once_and_not_early(cold: bool) -> None:
    outcome = in_time(lambda lead_s: burst.run(burst.Plan(messages=30_000, lead_s=lead_s / 2, before_s=1, cold=cold)))
    assert outcome.before_ms, "nobody looked"
    for figure in burst.figures(outcome):
        print(figure)


def test_an_urgent_message_behind_many_is_next() -> None:
    assert lanes.run_behind(lanes.Plan(200_000)).grown_mib < lanes.GROWN_MIB


def test_what_is_left_between_settled_messages_is_found_after_a_restart() -> None:
    assert lanes.run_between(lanes.Plan(200_000)).again_mib > 0


def test_readers_that_stop_leave_the_broker_small_and_go_on_without_a_gap() -> None:
    outcome = stopped.run(stopped.Plan(mib=256, before_s=0.5, stopped_s=1.5, resumed=100_000))
    assert outcome.before_ms, "nobody looked"
    assert outcome.meanwhile_ms, "nobody got anything while others had stopped"
    assert outcome.peak_mib - outcome.base_mib < stopped.GROWN_MIB
    assert outcome.resumed == 100_000
    for figure in stopped.figures(outcome):
        print(figure)


def test_messages_beside_an_open_transaction_come_and_its_own_when_it_is_committed() -> None:
    outcome = open_transactions.run(open_transactions.Plan(before_s=0.3, open_s=0.7, held=500))
    assert all(outcome.before_ms.values()), "nothing was measured before"
    assert all(outcome.meanwhile_ms.values()), "nothing came beside it"
    assert outcome.committed == {"partition": 1500, "key": 1500}
    for figure in open_transactions.figures(outcome):
        print(figure)


def test_a_thousand_open_transactions_take_little() -> None:
    outcome = open_transactions.run_many(1000)
    assert outcome.open_mib - outcome.base_mib < open_transactions.GROWN_MIB


def test_the_costliest_requests_are_answered_and_what_is_more_is_refused() -> None:
    for outcome in costly.run(costly.Plan(each_s=0, mib=4)):
        (answer,) = {answer.partition(" ")[2] for answer in outcome.answers.split(", ")}
        if "empty" in outcome.name:
            assert answer in ("too_large", "INVALID_ARGUMENT"), outcome
        else:
            assert answer == ("nothing" if outcome.name == "nothing else" else "ok"), outcome


def test_a_disk_too_small_for_the_backlog_is_said_before_anything_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1279 * MIB))
    with pytest.raises(stopped.NoSpace, match="needs 1280 MiB of disk"):
        stopped.run(stopped.Plan(mib=256))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", PARTS)
def test_deliveries_at_scale_stay_within_their_limits(part: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.scale", part], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
