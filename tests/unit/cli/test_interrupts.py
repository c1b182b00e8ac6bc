"""Signals that stop a writer only where nothing is half done."""

import signal
from collections.abc import Iterator

import pytest

from goqueue.cli.interrupts import SIGNALS, Interrupted, Interrupts


@pytest.fixture(autouse=True)
def _heeding() -> Iterator[None]:
    """A suite that runs in the background ignores Ctrl-C."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_waiting_ends_the_wait(number: int) -> None:
    with Interrupts() as interrupts, pytest.raises(Interrupted) as caught, interrupts.waiting():
        signal.raise_signal(number)
    assert caught.value.number == number


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_the_middle_of_work_is_kept_until_the_next_wait(number: int) -> None:
    reached = False
    with Interrupts() as interrupts:
        signal.raise_signal(number)
        reached = True
        with pytest.raises(Interrupted), interrupts.waiting():
            pytest.fail("it should not have waited")
    assert reached


def test_a_signal_somebody_chose_to_ignore_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts() as interrupts, interrupts.waiting():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_what_signals_did_before_they_do_again_afterwards() -> None:
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
