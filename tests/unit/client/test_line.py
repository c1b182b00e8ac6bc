"""Blocks in line: who is sent, with which sequence, who moves up, and when a new producer id is needed."""

import pytest

from goqueue.client.line import IN_DOUBT, SEQUENCES, WINDOW, Block, Identity, Line
from goqueue.model import limits
from goqueue.model.errors import (
    Busy,
    DiskFull,
    Draining,
    GoQueueError,
    InvalidRecord,
    OutOfSequence,
    RequestTimeout,
    StorageFailed,
    TransactionAborted,
    Unavailable,
    UnknownProducer,
    UnknownTopic,
)
from goqueue.model.publishing import Durability
from goqueue.wire.blocks import PublishReply, Range

FIRST = Identity(1001, 0)
SECOND = Identity(1002, 0)
LOST = Unavailable("the connection was lost")
INVALID = InvalidRecord("its checksum does not match", index=0, position=0)


class Watched(Block):
    """Keeps what it hears."""

    __slots__ = ("outcome",)

    def __init__(self, records: bytes, count: int) -> None:
        super().__init__(records, count)
        self.outcome: PublishReply | GoQueueError | None = None

    def finish(self, outcome: PublishReply | GoQueueError) -> None:
        self.outcome = outcome


class Publisher:
    """A line of blocks, and the one who waits for them."""

    def __init__(self) -> None:
        self.line = Line(7, 3)
        self.line.identity = FIRST

    def add(self, *counts: int) -> list[Watched]:
        blocks = [Watched(b"records", count) for count in counts]
        self.line.waiting.extend(blocks)
        return blocks

    def send(self) -> list[tuple[int, int]]:
        """Producer id and sequence of every block that may be sent now."""
        sent = []
        while (taken := self.line.take()) is not None:
            sent.append((taken[1].producer_id, taken[1].sequence))
        return sent

    def answer(self, *answers: tuple[Block, PublishReply | GoQueueError]) -> None:
        for block, answer in answers:
            self.line.on_answer(block, answer)
        if self.line.to_settle:
            self.line.settle()


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


def ok(block: Block) -> PublishReply:
    return PublishReply(Durability.DURABLE, (Range(block.count, 0, 5),))


def gap(expected: int) -> OutOfSequence:
    return OutOfSequence("something is missing", expected=expected)


def failure(block: Watched) -> BaseException | None:
    return block.outcome if isinstance(block.outcome, GoQueueError) else None


def test_blocks_are_numbered_one_behind_the_other(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3, 1)
    assert publisher.send() == [(1001, 0), (1001, 2), (1001, 5)]
    publisher.answer(*((block, ok(block)) for block in blocks))
    publisher.add(1)
    assert publisher.send() == [(1001, 6)]
    assert [block.outcome for block in blocks] == [ok(block) for block in blocks]


def test_no_more_are_under_way_than_the_broker_remembers(publisher: Publisher) -> None:
    assert WINDOW == limits.REMEMBERED_RUNS
    blocks = publisher.add(*[1] * (WINDOW + 2))
    assert len(publisher.send()) == WINDOW
    publisher.answer((blocks[0], ok(blocks[0])))
    assert publisher.send() == [(1001, WINDOW)]


def test_an_answer_that_overtakes_others_makes_no_room_yet(publisher: Publisher) -> None:
    blocks = publisher.add(*[1] * (WINDOW + 1))
    publisher.send()
    publisher.answer((blocks[1], ok(blocks[1])))
    assert blocks[1].done
    assert publisher.send() == []


def test_sequences_go_on_at_zero_behind_the_largest(publisher: Publisher) -> None:
    publisher.line._next_sequence = SEQUENCES - 1
    blocks = publisher.add(2, 1)
    assert publisher.send() == [(1001, SEQUENCES - 1), (1001, 1)]
    publisher.answer((blocks[0], INVALID), (blocks[1], gap(SEQUENCES - 1)))
    assert publisher.send() == [(1001, SEQUENCES - 1)]
    publisher.answer((blocks[1], ok(blocks[1])))
    publisher.add(1)
    assert publisher.send() == [(1001, 0)]


def test_without_an_identity_nothing_is_sent(publisher: Publisher) -> None:
    publisher.line.identity = None
    publisher.add(1)
    assert publisher.send() == []


def test_a_block_given_up_before_it_was_sent_is_not_sent(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3)
    blocks[0].done = True
    assert publisher.send() == [(1001, 0)]
    assert list(publisher.line.under_way) == [blocks[1]]


def test_a_troubled_line_sends_nothing_before_all_answers_are_in(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3, 1)
    publisher.send()
    publisher.answer((blocks[0], Busy("later")))
    publisher.add(1)
    assert publisher.send() == []
    publisher.answer((blocks[1], gap(0)), (blocks[2], gap(0)))
    assert publisher.send() == [(1001, 0), (1001, 2), (1001, 5), (1001, 6)]


@pytest.mark.parametrize("error", [LOST, Busy("later"), DiskFull("later"), Draining("later"), StorageFailed("broken")])
def test_after_a_retriable_error_the_same_is_sent_again(publisher: Publisher, error: GoQueueError) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer(*((block, error) for block in blocks))
    assert publisher.send() == [(1001, 0), (1001, 2)]
    assert blocks[0].in_doubt is not isinstance(error, Busy | DiskFull)
    publisher.answer(*((block, ok(block)) for block in blocks))
    assert publisher.line.identity == FIRST
    assert blocks[1].outcome == ok(blocks[1])


def test_blocks_behind_a_refused_one_move_up(publisher: Publisher) -> None:
    blocks = publisher.add(1, 2, 3, 1)
    publisher.send()
    publisher.answer((blocks[0], ok(blocks[0])), (blocks[1], INVALID), (blocks[2], gap(1)), (blocks[3], gap(1)))
    assert failure(blocks[1]) is INVALID
    publisher.add(5)
    assert publisher.send() == [(1001, 1), (1001, 4), (1001, 5)]


def test_blocks_behind_a_refused_first_one_move_up_though_the_producer_is_unknown(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer((blocks[0], INVALID), (blocks[1], UnknownProducer("who?")))
    assert publisher.send() == [(1001, 0)]


def test_several_refused_ones_free_the_sequences_of_all(publisher: Publisher) -> None:
    blocks = publisher.add(1, 2, 3, 4)
    publisher.send()
    publisher.answer((blocks[0], INVALID), (blocks[1], gap(0)), (blocks[2], INVALID), (blocks[3], gap(0)))
    assert publisher.send() == [(1001, 0), (1001, 2)]


def test_a_block_given_up_after_a_refusal_frees_its_sequences(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer((blocks[0], Busy("later")), (blocks[1], gap(0)))
    blocks[0].done = True
    publisher.line.tidy()
    assert publisher.send() == [(1001, 0)]
    assert publisher.line.identity == FIRST


def test_when_a_block_in_doubt_is_given_up_others_in_doubt_fail_and_the_rest_goes_on_under_a_new_id(
    publisher: Publisher,
) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer((blocks[0], LOST), (blocks[1], LOST))
    fresh = publisher.add(4)
    blocks[0].done = True
    publisher.line.tidy()
    assert str(failure(blocks[1])) == IN_DOUBT
    assert (publisher.line.identity, publisher.line.former) == (None, FIRST)
    assert publisher.send() == []
    publisher.line.identity = SECOND
    assert publisher.send() == [(1002, 0)]
    assert not fresh[0].done


def test_when_a_block_in_doubt_is_refused_its_sequences_are_not_used_again(publisher: Publisher) -> None:
    blocks = publisher.add(2)
    publisher.send()
    publisher.answer((blocks[0], LOST))
    publisher.send()
    blocks += publisher.add(3)
    publisher.send()
    publisher.answer((blocks[0], INVALID), (blocks[1], gap(0)))
    assert type(failure(blocks[0])) is Unavailable, "it may be there because of the first attempt"
    assert str(failure(blocks[0])) == f"{IN_DOUBT} ({INVALID})"
    assert publisher.line.identity is None
    publisher.line.identity = SECOND
    assert publisher.send() == [(1002, 0)]


def test_a_block_in_doubt_never_moves_up(publisher: Publisher) -> None:
    """It may still arrive with its old sequence, over the old connection."""
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer((blocks[0], INVALID), (blocks[1], LOST))
    assert isinstance(failure(blocks[1]), Unavailable)
    assert publisher.line.identity is None


@pytest.mark.parametrize("error", [GoQueueError("a bug"), UnknownTopic("gone")])
def test_an_error_that_leaves_open_what_happened_ends_the_identity(publisher: Publisher, error: GoQueueError) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer((blocks[0], error), (blocks[1], gap(0)))
    assert failure(blocks[0]) is error
    assert publisher.line.identity is None
    assert list(publisher.line.waiting) == [blocks[1]]


def test_a_forgotten_producer_goes_on_under_a_new_id(publisher: Publisher) -> None:
    blocks = publisher.add(2)
    publisher.send()
    publisher.answer((blocks[0], ok(blocks[0])))
    blocks = publisher.add(3, 1)
    publisher.send()
    publisher.answer((blocks[0], UnknownProducer("who?")), (blocks[1], UnknownProducer("who?")))
    assert not blocks[0].done
    publisher.line.identity = SECOND
    assert publisher.send() == [(1002, 0), (1002, 3)]


def test_a_block_in_doubt_of_a_forgotten_producer_fails(publisher: Publisher) -> None:
    blocks = publisher.add(2)
    publisher.send()
    publisher.answer((blocks[0], LOST))
    publisher.send()
    publisher.answer((blocks[0], UnknownProducer("who?")))
    assert str(failure(blocks[0])) == IN_DOUBT


def test_a_gap_nobody_made_fails_the_first_block_and_ends_the_identity(publisher: Publisher) -> None:
    blocks = publisher.add(2)
    publisher.send()
    publisher.answer((blocks[0], ok(blocks[0])))
    blocks = publisher.add(3, 1)
    publisher.send()
    publisher.answer((blocks[0], gap(1)), (blocks[1], gap(1)))
    assert isinstance(failure(blocks[0]), OutOfSequence)
    assert not blocks[1].done
    publisher.line.identity = SECOND
    assert publisher.send() == [(1002, 0)]


def test_a_block_appended_behind_one_that_was_not_ends_the_identity(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer((blocks[0], Busy("later")), (blocks[1], ok(blocks[1])))
    assert publisher.line.identity is None
    assert list(publisher.line.waiting) == [blocks[0]]


def test_a_block_in_doubt_whose_follower_was_appended_is_sent_again_as_it_was(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    publisher.answer((blocks[0], RequestTimeout("the fsync took long")), (blocks[1], ok(blocks[1])))
    publisher.add(1)
    assert publisher.send() == [(1001, 0), (1001, 5)]


def test_an_answer_for_a_block_given_up_still_counts(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    blocks[0].done = True
    publisher.answer((blocks[0], ok(blocks[0])), (blocks[1], ok(blocks[1])))
    publisher.add(1)
    assert publisher.send() == [(1001, 5)]


def test_failures_are_counted_until_a_block_gets_on(publisher: Publisher) -> None:
    blocks = publisher.add(2, 3)
    for number in range(1, 4):
        publisher.send()
        publisher.answer((blocks[0], Busy("later")), (blocks[1], gap(0)))
        assert publisher.line.failures == number
    publisher.send()
    publisher.answer((blocks[0], INVALID), (blocks[1], gap(0)))
    assert publisher.line.failures == 0


def test_whether_a_block_may_be_appended_is_known_at_every_moment(publisher: Publisher) -> None:
    (block,) = publisher.add(2)
    assert not block.may_be_appended
    publisher.send()
    assert block.may_be_appended
    publisher.answer((block, Busy("later")))
    assert not block.may_be_appended
    publisher.send()
    publisher.answer((block, LOST))
    assert block.may_be_appended


def test_failing_a_line_gives_each_block_an_error_of_its_own_and_leaves_doubt_about_those_under_way(
    publisher: Publisher,
) -> None:
    blocks = publisher.add(2, 3)
    publisher.send()
    blocks += publisher.add(1, 1)
    publisher.line.fail(gap(9))
    failures = [failure(block) for block in blocks]
    assert [type(each) for each in failures] == [Unavailable, Unavailable, OutOfSequence, OutOfSequence]
    assert [str(each) for each in failures[2:]] == ["something is missing"] * 2
    assert len({id(each) for each in failures}) == 4


def test_of_an_aborted_transaction_nothing_is_in_doubt() -> None:
    line = Line(7, 0)
    line.identity = Identity(5, 0)
    heard: list[object] = []

    class Heard(Block):
        def finish(self, outcome: object) -> None:
            heard.append(outcome)

    block = Heard(b"", 1)
    line.waiting.append(block)
    line.take()
    line.on_answer(block, Unavailable("no answer"))
    line.settle()
    line.take()
    aborted = TransactionAborted("it was open for too long")
    line.on_answer(block, aborted)
    line.settle()
    assert heard == [aborted]
