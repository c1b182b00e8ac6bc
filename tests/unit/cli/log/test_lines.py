"""Standard input as blocks of messages."""

import io
from collections.abc import Iterable

import pytest

from goqueue import codec
from goqueue.cli.log.lines import arrived_lines, blocks
from goqueue.model.errors import InvalidRequest
from goqueue.model.record import Lane, Record


class Pipe:
    """Hands out what it was given piece by piece, as a slow writer would."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.reads = 0

    def read1(self, size: int, /) -> bytes:
        self.reads += 1
        return next(self._pieces, b"")


@pytest.mark.parametrize("cut", range(1, 8))
def test_lines_do_not_depend_on_how_they_arrive(cut: int) -> None:
    text = b"one\n\ntwo words\r\n\xff\x00\nlast"
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    lines = [line for group in arrived_lines(Pipe(pieces), 100) for line in group]
    assert lines == [b"one", b"", b"two words\r", b"\xff\x00", b"last"]


def test_input_that_ends_with_a_newline_has_no_empty_line_after_it() -> None:
    assert list(arrived_lines(Pipe([b"a\nb\n"]), 100)) == [[b"a", b"b"]]
    assert list(arrived_lines(Pipe([]), 100)) == []


def test_a_line_is_handed_on_before_the_next_one_is_waited_for() -> None:
    pipe = Pipe([b"first\n", b"second\n"])
    found = arrived_lines(pipe, 100)
    assert next(found) == [b"first"]
    assert pipe.reads == 1


def test_a_line_too_long_is_refused_by_number_before_all_of_it_is_in_memory() -> None:
    pipe = Pipe([b"fine\n", *([b"x" * 10] * 1000)])
    with pytest.raises(InvalidRequest, match="line 2 is longer than the 50 bytes"):
        list(arrived_lines(pipe, 50))
    assert pipe.reads < 10


def test_blocks_are_bounded_and_carry_the_message_around_each_line() -> None:
    message = Record(key=b"k", priority=Lane.LOW, headers=(("a", b"b"),))
    lines = [b"%d" % number for number in range(1000)]
    found = list(blocks(io.BytesIO(b"\n".join(lines)), message, 2000))
    assert max(len(block.data) for block in found) <= 2000
    assert sum(block.input_bytes for block in found) == len(b"\n".join(lines)) + 1
    records = [record for block in found for record in codec.decode(block.data)]
    assert [record.value for record in records] == lines
    assert {(record.key, record.priority, record.headers) for record in records} == {(b"k", 3, (("a", b"b"),))}


def test_a_line_larger_than_a_block_gets_one_of_its_own() -> None:
    found = list(blocks(io.BytesIO(b"a\n" + b"x" * 5000 + b"\nb\n"), Record(), 1000))
    assert [len(codec.decode(block.data)) for block in found] == [1, 1, 1]
