"""The library's lines about clients that left are left out, of our services, for as long as the door is open."""

import logging

import pytest

from goqueue.api.grpc.library_log import LOGGER, UNSENT, leave_out_unsent

OURS = f"{UNSENT} [/ours.Service/Method]"


def test_an_answer_that_could_not_be_sent_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(LOGGER)
    others = (f"{UNSENT} [/theirs.Service/Method]", "Unexpected [KeyError] raised by servicer method [/ours.Service/M]")
    log_all = leave_out_unsent(["ours.Service"])
    for line in (OURS, *others):
        logger.error(line)
    log_all()
    logger.error(OURS)
    assert [record.getMessage() for record in caplog.records] == [*others, OURS]
