"""Errors: one tree, frozen codes, messages that say where to go on."""

import re

import pytest

from goqueue.model import errors
from goqueue.model.errors import (
    GoQueueError,
    InvalidRecord,
    NotBuilt,
    OffsetOutOfRange,
    OutOfSequence,
    Quarantined,
    TooLarge,
    Unavailable,
)

CLASSES = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, GoQueueError)]
# What is on the wire one day stays: a line may be added here, never changed.
CODES = {
    "GoQueueError": "internal",
    "InvalidRequest": "invalid_request",
    "InvalidRecord": "invalid_record",
    "InvalidSetting": "invalid_setting",
    "MethodNotAllowed": "method_not_allowed",
    "NotBuilt": "not_available",
    "OffsetOutOfRange": "offset_out_of_range",
    "ProtocolError": "protocol_error",
    "StaleEpoch": "stale_epoch",
    "TooLarge": "too_large",
    "UnknownTransferCoding": "unknown_transfer_coding",
    "Forbidden": "forbidden",
    "NotFound": "not_found",
    "UnknownDelay": "unknown_delay",
    "UnknownGroup": "unknown_group",
    "UnknownMember": "unknown_member",
    "UnknownOperation": "unknown_operation",
    "UnknownPartition": "unknown_partition",
    "UnknownProducer": "unknown_producer",
    "UnknownReader": "unknown_reader",
    "UnknownRedrive": "unknown_redrive",
    "UnknownSchedule": "unknown_schedule",
    "UnknownTopic": "unknown_topic",
    "UnknownTransaction": "unknown_transaction",
    "Conflict": "conflict",
    "AlreadyDelivered": "already_delivered",
    "GroupActive": "group_active",
    "MemberFenced": "member_fenced",
    "NotOwner": "not_owner",
    "OutOfSequence": "out_of_sequence",
    "ProducerFenced": "producer_fenced",
    "StaleHandle": "stale_handle",
    "StaleToken": "stale_token",
    "TopicExists": "topic_exists",
    "TransactionAborted": "transaction_aborted",
    "Unavailable": "unavailable",
    "BufferFull": "buffer_full",
    "Busy": "busy",
    "DiskFull": "disk_full",
    "DirectoryLocked": "directory_locked",
    "Draining": "draining",
    "LogClosed": "log_closed",
    "RequestTimeout": "request_timeout",
    "DamagedData": "damaged_data",
    "Quarantined": "quarantined",
    "DamagedState": "damaged_state",
    "StorageFailed": "storage_failed",
}


def test_codes_are_frozen_and_every_error_has_one() -> None:
    assert {each.__name__: each.code for each in CLASSES} == CODES


def test_every_class_says_its_code_itself() -> None:
    """An inherited one would be somebody else's."""
    assert [each.__name__ for each in CLASSES if "code" not in vars(each)] == []


def test_a_code_is_a_word_for_programs() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in CODES.values())


def test_no_two_errors_share_a_code() -> None:
    codes = [each.code for each in CLASSES]
    assert len(set(codes)) == len(codes)


def drawn_tree() -> dict[str, str | None]:
    """Every class of the drawing with the one it hangs from."""
    found: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"((?:│   |    )*)(├── |└── )?([A-Z]\w+)(?:\s{2,}\S.*)?", line)
        if match:
            depth = len(match[1]) // 4 + bool(match[2])
            path[depth:] = [match[3]]
            found[match[3]] = path[depth - 1] if depth else None
    return found


def test_every_error_is_drawn_in_the_tree_where_it_belongs() -> None:
    parents = {each.__name__: each.__bases__[0].__name__ for each in CLASSES}
    assert drawn_tree() == parents | {"GoQueueError": None}


def test_what_is_unavailable_may_be_tried_again() -> None:
    retriable = {each.__name__ for each in CLASSES if each.retriable}
    assert retriable == {each.__name__ for each in CLASSES if issubclass(each, Unavailable)} | {"StorageFailed"}


@pytest.mark.parametrize("name", ["InvalidRequest", "StaleEpoch", "Quarantined", "DamagedState"])
def test_what_stays_wrong_is_not_retriable(name: str) -> None:
    assert not getattr(errors, name).retriable


def test_an_offset_out_of_range_says_what_there_is() -> None:
    error = OffsetOutOfRange(9, start=2, end=7)
    assert str(error) == "offset 9 is outside this log, which holds 2 up to 7 (not included)"
    assert (error.offset, error.start, error.end) == (9, 2, 7)


def test_a_quarantined_range_says_where_reading_goes_on() -> None:
    error = Quarantined(3, 5, where="a.log", reason="its checksum does not match")
    assert str(error) == ("offsets 3 to 4 are damaged (its checksum does not match, a.log); reading goes on at 5")
    assert (error.first, error.next_offset) == (3, 5)


def test_details_are_what_a_program_needs_to_act() -> None:
    assert GoQueueError("x").details == {}
    assert InvalidRecord("why", index=3, position=99).details == {"index": 3, "reason": "why"}
    assert NotBuilt("delay").details == {"field": "delay"}
    assert OffsetOutOfRange(9, start=2, end=7).details == {"offset": 9, "earliest": 2, "latest": 7}
    assert OutOfSequence("x", expected=5).details == {"expected": 5}
    found = Quarantined(3, 5, where="a.log", reason="its checksum does not match").details
    assert found == {"first": 3, "next_offset": 5, "reason": "its checksum does not match"}


def test_an_error_about_one_message_of_a_request_says_which() -> None:
    error = TooLarge("x")
    assert error.details == {}
    error.index = 4
    assert error.details == {"index": 4}
    assert TooLarge("another").index is None


def test_a_feature_that_is_not_built_is_named() -> None:
    assert str(NotBuilt("delay")) == "delay is not available in this version of GoQueue; leave it out"
