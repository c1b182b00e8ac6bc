"""Transactions over brokers and programs that are killed: a few rounds in the suite, many on request; and broken
brokers, which the rig must catch."""

import os
from pathlib import Path

import pytest

from tests.chaos.ledger import Lost, Violation
from tests.chaos.transaction_kill import MODES, Twice, kill_in_transactions
from tests.support.delivery_planted import program


def any_seed() -> int:
    return int.from_bytes(os.urandom(3), "big")


def test_every_input_has_one_result_whatever_is_killed(tmp_path: Path) -> None:
    outcome = kill_in_transactions(tmp_path, 5, seed=any_seed())
    assert len(outcome.rounds) == 5
    assert any(each.open for each in outcome.rounds), "no transaction was open: little is shown"
    assert outcome.committed


@pytest.mark.parametrize(("planted", "violation"), [("hasty-pledges", Lost), ("all-commit", Twice)])
def test_a_broken_broker_is_caught(tmp_path: Path, planted: str, violation: type[Violation]) -> None:
    with pytest.raises(violation):  # shown by aborted transactions: one in ten, and those that a kill hits
        kill_in_transactions(tmp_path, 8, seed=any_seed(), program=program(planted))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
def test_every_input_has_one_result_after_ten_rounds(tmp_path: Path, mode: str) -> None:
    outcome = kill_in_transactions(tmp_path, 10, seed=any_seed(), mode=mode)
    assert sum(1 for each in outcome.rounds if each.open) >= 5, "most rounds hit no open transaction"
    assert outcome.results_aborted, "no result was ever aborted"
