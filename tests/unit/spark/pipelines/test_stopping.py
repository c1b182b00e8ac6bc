"""A signal asks a run to stop; it is done in another thread, and the handlers before it come back."""

import signal
import threading

from goqueue.spark.pipelines.stopping import Stopping
from tests.support.patience import PATIENCE_S


def test_the_first_signal_asks_for_the_end() -> None:
    stopped = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    with Stopping() as stopping:
        stopping.instead(stopped.set)
        assert not stopping.is_asked
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(PATIENCE_S)
        assert (stopping.is_asked, stopping.number) == (True, signal.SIGTERM)
        assert stopping.wait(PATIENCE_S)
    assert signal.getsignal(signal.SIGTERM) is before


def test_it_listens_again_after_somebody_else_did() -> None:
    with Stopping() as stopping:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stopping.listen()
        signal.raise_signal(signal.SIGINT)
        assert stopping.number == signal.SIGINT


def test_what_is_to_be_done_is_done_at_once_when_the_end_was_asked_for_before() -> None:
    stopped = threading.Event()
    with Stopping() as stopping:
        signal.raise_signal(signal.SIGTERM)
        stopping.instead(stopped.set)
        assert stopped.is_set()
