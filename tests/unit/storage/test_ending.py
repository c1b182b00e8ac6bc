"""How a log ends: the first failure is told to everybody, and being closed is the last word."""

import pytest

from goqueue.base.mark import Mark
from goqueue.model.errors import LogClosed, StorageFailed
from goqueue.storage.ending import Ending


def test_while_a_log_is_well_nothing_is_refused() -> None:
    ending = Ending("logs/a", Mark())
    ending.check()
    ending.check_open()
    assert ending.reason is None


def test_a_failure_reaches_all_marks_and_leaves_reading_alone() -> None:
    marks = [Mark(), Mark()]
    ending = Ending("logs/a", *marks)
    told: list[Exception | None] = []
    marks[1].when(1, told.append)
    failure = ending.fail("the disk is gone")
    assert str(failure) == "logs/a: the disk is gone; stop, check the disk, start again"
    assert told == [failure]
    assert [mark.failure for mark in marks] == [failure, failure]
    with pytest.raises(StorageFailed):
        ending.check()
    ending.check_open()


def test_being_closed_is_the_last_word() -> None:
    mark = Mark()
    ending = Ending("logs/a", mark)
    ending.fail("the disk is gone")
    ending.close("was removed")
    with pytest.raises(LogClosed, match=r"^logs/a was removed$"), ending.or_fail("reading"):
        raise FileNotFoundError
    assert isinstance(ending.fail("again"), LogClosed)
    assert isinstance(mark.failure, LogClosed)
    for check in (ending.check, ending.check_open):
        with pytest.raises(LogClosed):
            check()


def test_only_an_error_of_the_disk_is_a_failure() -> None:
    ending = Ending("logs/a", Mark())
    with pytest.raises(ValueError, match="a bug"), ending.or_fail("thinking"):
        raise ValueError("a bug")
    assert ending.reason is None
    with pytest.raises(StorageFailed, match="fsync failed: broken") as caught, ending.or_fail("fsync"):
        raise OSError("broken")
    assert caught.value is ending.reason
