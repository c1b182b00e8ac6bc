"""The producer table: duplicates are answered with their first offsets, gaps and old epochs are refused."""

import tracemalloc

import pytest

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, OutOfSequence, ProducerFenced, UnknownProducer
from goqueue.model.record import Producer
from goqueue.producers import sequences
from goqueue.producers.sequences import LAST_SEQUENCE, LONGEST_RUN, Known, ProducerTable, Run

T0 = 1_700_000_000_000

GOLDEN = bytes.fromhex(
    "0001 00000000000003f0 00000002"  # version, end, how many producers
    "0000000000000007 0003 00000005 0000018bcfe56800 01"  # id, epoch, next sequence, last timestamp, how many runs
    "0000000000000064 00000006"  # first offset, count
    "fffffffffffffffe ffff 0000000c 0000018bcfe56be8 02"
    "00000000000000c8 00000008"
    "00000000000003e8 00000008".replace(" ", "")
)


def sample() -> ProducerTable:
    """Producer 7 has wrapped around from 2**31 - 1; producer -2 has two runs and published last."""
    return table(
        Run(7, 3, LAST_SEQUENCE, 100, 6, T0),
        Run(-2, -1, LAST_SEQUENCE - 3, 200, 8, T0 + 999),
        Run(-2, -1, 4, 1000, 8, T0 + 1000),
    )


def table(*runs: Run) -> ProducerTable:
    found = ProducerTable()
    for run in runs:
        found.add(run)
    return found


def run(sequence: int, offset: int, count: int, *, producer: int = 1, epoch: int = 0, time: int = T0) -> Run:
    return Run(producer, epoch, sequence, offset, count, time)


def ask(found: ProducerTable, sequence: int, count: int, *, producer: int = 1, epoch: int = 0) -> list[tuple[int, int]]:
    """Where the messages are already."""
    return [
        (known.first_offset, known.count) for known in found.check(Producer(producer, epoch, sequence), count).known
    ]


# --- new, next, duplicate, overlap


def test_a_new_producer_begins_at_zero() -> None:
    assert ask(ProducerTable(), 0, 10) == []


def test_a_producer_nobody_knows_is_refused_unless_it_begins_at_zero() -> None:
    with pytest.raises(UnknownProducer, match=r"producer 1 is not known .* begins at sequence 5; initialise it again"):
        ask(ProducerTable(), 5, 10)


def test_the_next_messages_are_new() -> None:
    assert ask(table(run(0, 50, 10)), 10, 3) == []


def test_what_is_there_is_a_duplicate_with_its_first_offsets() -> None:
    found = table(run(0, 50, 10))
    assert ask(found, 0, 10) == [(50, 10)]
    assert ask(found, 9, 1) == [(59, 1)]
    assert ask(found, 3, 4) == [(53, 4)]
    assert found.check(Producer(1, 0, 3), 4).known == (Known(first_offset=53, count=4),)


def test_of_an_overlap_only_the_beginning_is_known() -> None:
    """A batch that a power cut tore: half of it is there, and all of it comes again."""
    found = table(run(0, 50, 6))
    assert ask(found, 0, 10) == [(50, 6)]
    found.add(run(6, 70, 4))
    assert ask(found, 0, 10) == [(50, 6), (70, 4)]
    assert ask(found, 10, 1) == []


def test_a_duplicate_that_spans_runs_names_each_of_them() -> None:
    found = table(run(0, 10, 5), run(5, 20, 5), run(10, 30, 5))
    assert ask(found, 3, 12) == [(13, 2), (20, 5), (30, 5)]
    assert ask(found, 3, 9) == [(13, 2), (20, 5), (30, 2)]
    assert ask(found, 5, 5) == [(20, 5)]
    assert ask(found, 14, 100) == [(34, 1)]


def test_asking_changes_nothing() -> None:
    found = sample()
    ask(found, 0, 3, producer=7, epoch=3)
    ask(found, 0, 3, producer=5)
    assert found.to_bytes() == GOLDEN


# --- refused


def test_a_gap_is_refused_with_the_sequence_that_comes_next() -> None:
    with pytest.raises(
        OutOfSequence, match="sends sequence 11 where 10 comes next; send what is missing first"
    ) as caught:
        ask(table(run(0, 50, 10)), 11, 3)
    assert caught.value.expected == 10
    assert caught.value.details == {"expected": 10}


def test_what_is_no_longer_remembered_is_refused() -> None:
    found = table(*(run(10 * number, 100 * number, 10) for number in range(limits.REMEMBERED_RUNS + 1)))
    assert ask(found, 10, 1) == [(100, 1)]
    with pytest.raises(OutOfSequence, match=r"repeats sequence 9, which is too long ago .* 60 comes next") as caught:
        ask(found, 9, 1)
    assert caught.value.expected == 60


def test_an_older_epoch_is_fenced() -> None:
    with pytest.raises(ProducerFenced, match="producer 1 has been taken over by epoch 4; epoch 3 must stop"):
        ask(table(run(0, 50, 10, epoch=4)), 10, 1, epoch=3)


def test_a_newer_epoch_begins_at_zero() -> None:
    found = table(run(0, 50, 10, epoch=4))
    assert ask(found, 0, 1, epoch=5) == []
    with pytest.raises(OutOfSequence, match="begins epoch 5 at sequence 10; begin at 0") as caught:
        ask(found, 10, 1, epoch=5)
    assert caught.value.expected == 0


@pytest.mark.parametrize("sequence", [-1, -(2**31), LAST_SEQUENCE + 1])
def test_a_number_that_is_no_sequence_is_refused(sequence: int) -> None:
    for found in (ProducerTable(), table(run(LAST_SEQUENCE, 0, 1))):
        with pytest.raises(InvalidRequest, match="a sequence is from 0 to 2147483647"):
            ask(found, sequence, 1)


# --- folding


def test_a_run_that_goes_on_extends_the_last_one() -> None:
    found = table(run(0, 50, 10), run(10, 60, 10))
    assert ask(found, 5, 15) == [(55, 15)]
    assert found == table(run(0, 50, 20))


def test_only_the_last_runs_are_remembered() -> None:
    runs = [run(number, 2 * number, 1) for number in range(20)]
    assert ask(table(*runs), 15, 5) == [(30, 1), (32, 1), (34, 1), (36, 1), (38, 1)]
    with pytest.raises(OutOfSequence):
        ask(table(*runs), 14, 1)


def test_a_newer_epoch_forgets_the_runs_of_the_older() -> None:
    found = table(run(0, 50, 10, epoch=1), run(0, 60, 5, epoch=2))
    assert ask(found, 0, 10, epoch=2) == [(60, 5)]
    assert found.to_bytes().count(sequences.RUN.pack(50, 10)) == 0


def test_an_older_epoch_in_the_log_is_ignored() -> None:
    found = table(run(0, 50, 10, epoch=2), run(0, 60, 5, epoch=1))
    assert ask(found, 10, 1, epoch=2) == []
    with pytest.raises(ProducerFenced):
        ask(found, 5, 1, epoch=1)


def test_a_run_that_does_not_go_on_is_a_new_beginning() -> None:
    """The producer had been forgotten, or what is between is damaged: one sequence must not have two offsets."""
    found = table(run(0, 50, 10), run(0, 90, 4))
    assert ask(found, 0, 10) == [(90, 4)]
    found = table(run(0, 50, 10), run(20, 90, 4))
    assert ask(found, 20, 5) == [(90, 4)]
    for sequence in (0, 19):
        with pytest.raises(OutOfSequence):
            ask(found, sequence, 1)


def test_what_lies_below_the_end_is_folded_once() -> None:
    found = table(run(0, 50, 10), run(0, 60, 5, producer=2))
    expected = found.copy()
    found.add(run(0, 50, 10))
    found.add(run(0, 0, 3, producer=3))
    assert found == expected
    found.add(run(5, 55, 5))
    assert found == expected


def test_of_a_run_that_begins_below_the_end_the_rest_is_folded() -> None:
    found = table(run(0, 50, 10))
    found.add(run(0, 50, 25))
    assert found == table(run(0, 50, 25))


def test_a_run_with_a_number_that_is_no_sequence_is_ignored() -> None:
    found = table(run(0, 50, 10), run(-5, 60, 3), run(-1, 63, 3, producer=2))
    assert len(found) == 1
    assert ask(found, 10, 1) == []


# --- wrapping around


def test_sequences_go_on_at_zero_after_the_last() -> None:
    found = table(run(LAST_SEQUENCE - 4, 50, 10))
    assert ask(found, 5, 1) == []
    assert ask(found, LAST_SEQUENCE - 1, 5) == [(53, 5)]
    assert ask(found, 3, 9) == [(58, 2)]
    with pytest.raises(OutOfSequence, match="too long ago"):
        ask(found, LAST_SEQUENCE - 5, 1)
    with pytest.raises(OutOfSequence, match="send what is missing"):
        ask(found, 6, 1)


def test_a_run_that_ends_with_the_last_sequence_is_followed_by_zero() -> None:
    found = table(run(LAST_SEQUENCE - 4, 50, 5))
    assert ask(found, 0, 1) == []
    found.add(run(0, 70, 3))
    assert ask(found, LAST_SEQUENCE, 4) == [(54, 1), (70, 3)]


def test_a_very_long_run_is_remembered_in_part_and_a_gap_stays_a_gap() -> None:
    found = table(run(0, 10, 3), run(3, 100, LONGEST_RUN - 1), run(2 + LONGEST_RUN, 99 + LONGEST_RUN, 2))
    assert ask(found, 4, 1) == [(101, 1)]
    with pytest.raises(OutOfSequence):
        ask(found, 3, 1)
    assert found == table(run(3, 100, LONGEST_RUN + 1))
    found = table(run(0, 10, 3), run(3, 100, LONGEST_RUN))
    assert ask(found, 3, 1) == [(100, 1)]
    with pytest.raises(OutOfSequence):
        ask(found, 2, 1)
    assert limits.REMEMBERED_RUNS * LONGEST_RUN < LAST_SEQUENCE * 2 // 3


# --- how many, how long


def test_beyond_its_capacity_the_longest_idle_producer_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PRODUCERS_PER_PARTITION", 3)
    found = table(*(run(0, number, 1, producer=number) for number in range(3)))
    found.add(run(1, 3, 1, producer=0))
    found.add(run(0, 4, 1, producer=9))
    assert len(found) == 3
    with pytest.raises(UnknownProducer):
        ask(found, 1, 1, producer=1)
    for producer, following in ((0, 2), (2, 1), (9, 1)):
        assert ask(found, following, 1, producer=producer) == []


def test_the_capacity_is_that_of_the_product() -> None:
    found = table(*(run(0, number, 1, producer=number) for number in range(limits.MAX_PRODUCERS_PER_PARTITION + 5)))
    assert len(found) == limits.MAX_PRODUCERS_PER_PARTITION


def test_idle_producers_expire() -> None:
    found = table(
        run(0, 0, 1, producer=1, time=T0), run(0, 1, 1, producer=2, time=T0 + 5), run(1, 2, 1, producer=1, time=T0 + 9)
    )
    found.expire(T0 + 5)
    assert len(found) == 2
    found.expire(T0 + 6)
    assert len(found) == 1
    assert ask(found, 2, 1, producer=1) == []
    with pytest.raises(UnknownProducer):
        ask(found, 1, 1, producer=2)
    found.expire(T0 + 10)
    assert len(found) == 0


def test_the_brokers_own_producers_push_out_no_client_and_no_client_pushes_out_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_PRODUCERS_PER_PARTITION", 3)
    own = limits.OWN_PRODUCERS
    found = table(run(0, 0, 1), *(run(0, 1 + number, 1, producer=own + number) for number in range(5)))
    assert len(found) == 4
    assert ask(found, 1, 1) == [], "the client's next message is welcome"
    assert ask(found, 0, 1, producer=own + 2) == [(3, 1)]
    assert ask(found, 0, 1, producer=own + 1) == [], "own ones push out own ones, the longest idle first"
    for number in range(2, 7):
        found.add(run(0, 10 + number, 1, producer=number))
    assert len(found) == 6
    assert [ask(found, 0, 1, producer=own + number) for number in (2, 3, 4)] == [[(3, 1)], [(4, 1)], [(5, 1)]]
    with pytest.raises(UnknownProducer):
        ask(found, 1, 1)


def test_clients_and_the_brokers_own_come_back_from_bytes_and_merges_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PRODUCERS_PER_PARTITION", 2)
    own = limits.OWN_PRODUCERS
    runs = [run(0, number, 1, producer=number if number % 2 else own + number, time=T0 + number) for number in range(9)]
    found, halves = table(*runs), table(*runs[:4])
    assert len(found) == 4
    assert ProducerTable.from_bytes(found.to_bytes()) == found
    halves.merge(table(*runs))
    assert halves == found
    found.expire(T0 + 100)
    assert len(found) == 2, "the own ones"
    assert found.last_timestamp == T0 + 8


def test_the_last_timestamp_is_that_of_the_newest_record() -> None:
    assert ProducerTable().last_timestamp == 0
    assert sample().last_timestamp == T0 + 1000


# --- copies and merges


def test_a_copy_goes_its_own_way() -> None:
    found = sample()
    twin = found.copy()
    assert twin == found
    twin.add(run(0, 5000, 1))
    twin.expire(T0 + 1)
    assert found.to_bytes() == GOLDEN
    assert twin != found


def test_a_merge_is_as_if_everything_had_been_folded_in_one_table() -> None:
    runs = [
        run(0, 0, 5, producer=1),
        run(0, 5, 5, producer=2),
        run(5, 10, 5, producer=1),
        run(10, 15, 5, producer=1),
        run(5, 20, 5, producer=2, time=T0 + 3),
        run(0, 25, 5, producer=3, epoch=1),
        run(0, 30, 5, producer=2, epoch=1),
        run(15, 35, 5, producer=1),
    ]
    for cut in range(len(runs) + 1):
        for overlap in range(cut + 1):
            merged = table(*runs[:cut])
            merged.merge(table(*runs[cut - overlap :]))
            assert merged == table(*runs), f"cut at {cut}, {overlap} runs in both"


def test_a_merge_does_not_bring_back_who_was_forgotten() -> None:
    later = table(run(0, 0, 5, producer=1, time=T0), run(0, 5, 5, producer=2, time=T0 + 1))
    later.expire(T0 + 1)
    later.merge(table(run(2, 2, 3, producer=1)))
    assert len(later) == 1


def test_a_merge_keeps_to_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_PRODUCERS_PER_PARTITION", 3)
    runs = [run(0, number, 1, producer=number * 5 % 7) for number in range(7)]
    merged = table(*runs[:3])
    merged.merge(table(*runs[3:]))
    assert merged == table(*runs)
    assert len(merged) == 3


def test_a_merge_does_not_forget_who_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest idle producer of the one is the newest of the other, with room for three."""
    monkeypatch.setattr(limits, "MAX_PRODUCERS_PER_PARTITION", 3)
    runs = [run(0, 0, 1, producer=1), run(0, 1, 1, producer=2), run(1, 2, 1, producer=1)]
    runs += [run(0, 3, 1, producer=3), run(0, 4, 1, producer=4), run(2, 5, 1, producer=1)]
    merged = table(*runs[:2])
    merged.merge(table(*runs[2:]))
    assert merged == table(*runs)
    assert ask(merged, 0, 3, producer=1) == [(0, 1), (2, 1), (5, 1)]


def test_tables_are_equal_when_they_forget_in_the_same_order() -> None:
    one = table(run(0, 0, 1, producer=1), run(0, 1, 1, producer=2), run(0, 2, 1, producer=3))
    assert one == table(run(0, 0, 1, producer=1), run(0, 1, 1, producer=2), run(0, 2, 1, producer=3))
    assert one != table(run(0, 0, 1, producer=1), run(0, 2, 1, producer=3))
    other = ProducerTable.from_bytes(one.to_bytes())
    other._clients[1] = other._clients.pop(1)
    assert one != other
    assert one != object()


# --- damage


def damaged(found: ProducerTable, *ranges: tuple[int, int]) -> ProducerTable:
    for first, next_offset in ranges:
        found.lose(first, next_offset)
    return found


def test_a_gap_that_fits_into_damage_behind_the_last_run_is_believed() -> None:
    found = damaged(table(run(0, 0, 2)), (2, 4))
    for sequence, missing in ((2, 0), (3, 1), (4, 2)):
        verdict = found.check(Producer(1, 0, sequence), 1)
        assert (verdict.known, verdict.missing) == ((), missing)
    with pytest.raises(OutOfSequence, match="sends sequence 5 where 2 comes next"):
        ask(found, 5, 1)


def test_damage_before_the_last_run_explains_no_gap_after_it() -> None:
    found = damaged(table(run(0, 0, 2)), (2, 4))
    found.add(run(2, 4, 1))
    with pytest.raises(OutOfSequence):
        ask(found, 4, 1)


def test_a_new_epoch_may_have_begun_in_the_damage() -> None:
    found = damaged(table(run(0, 0, 2)), (2, 4))
    assert found.check(Producer(1, 1, 2), 1).missing == 2
    with pytest.raises(OutOfSequence):
        ask(found, 3, 1, epoch=1)


@pytest.mark.parametrize("ranges", [[(2, 4)], [(2, 3), (5, 6)], [(2, 6)]], ids=["all of it", "in two parts", "more"])
def test_damage_that_fills_the_gap_of_a_client_is_never_answered_as_its_messages(ranges: list[tuple[int, int]]) -> None:
    """The gap is believed; but the damage may be another producer's, and what is missing may never have arrived."""
    found = damaged(table(run(0, 0, 2)), *ranges)
    assert found.check(Producer(1, 0, 4), 2).missing == 2
    found.add(run(4, 7, 2))
    assert ask(found, 4, 2) == [(7, 2)]
    for sequence in (0, 2, 3):
        with pytest.raises(OutOfSequence, match="nobody can tell any more whether it is stored") as refused:
            ask(found, sequence, 1)
        assert refused.value.expected == 6
        assert not refused.value.retriable


def test_what_is_damaged_between_two_runs_of_the_brokers_own_and_fills_the_gap_is_recognised() -> None:
    own = limits.OWN_PRODUCERS
    found = damaged(table(run(0, 0, 2, producer=own)), (2, 3), (5, 6))
    found.add(run(4, 7, 2, producer=own))
    assert ask(found, 0, 6, producer=own) == [(0, 3), (5, 1), (7, 2)]


def test_the_brokers_own_producers_go_on_behind_any_gap() -> None:
    own = limits.OWN_PRODUCERS
    found = table(run(0, 0, 2, producer=own))
    verdict = found.check(Producer(own, 0, 7), 1)
    assert (verdict.known, verdict.missing) == ((), 5)


def test_whatever_the_brokers_own_producers_repeat_was_published() -> None:
    own = limits.OWN_PRODUCERS
    found = table(run(0, 0, 2, producer=own), run(5, 40, 2, producer=own))
    assert ask(found, 0, 3, producer=own) == [(37, 3)], "somewhere there, or before"
    assert ask(found, 4, 5, producer=own) == [(39, 1), (40, 2)], "and two that are new"


def test_tables_that_are_put_together_explain_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = damaged(table(run(0, 0, 2)), (2, 3))
    whole.add(run(3, 3, 2))
    whole.lose(5, 6)
    merged, later = damaged(table(run(0, 0, 2)), (2, 3)), damaged(table(run(3, 3, 2)), (5, 6))
    merged.merge(later)
    assert merged == whole
    assert ProducerTable.from_bytes(whole.to_bytes()) == whole
    assert merged.check(Producer(1, 0, 6), 1).missing == 1


def test_of_much_damage_the_newest_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMEMBERED_DAMAGE", 2)
    found = damaged(table(run(0, 0, 1)), (1, 2), (3, 4), (5, 6))
    assert found.check(Producer(1, 0, 3), 1).missing == 2
    with pytest.raises(OutOfSequence):
        ask(found, 4, 1)


# --- bytes

DAMAGED = bytes.fromhex(
    "0002 0000000000000002 00000001"
    "0000000000000001 0000 00000002 0000018bcfe56800 01"
    "0000000000000000 00000002"
    "0001"  # how many damaged ranges
    "0000000000000002 00000003".replace(" ", "")  # first offset, count
)


def test_the_bytes_of_a_table_that_knows_of_damage_are_the_golden_ones() -> None:
    found = damaged(table(run(0, 0, 2)), (2, 5))
    assert found.to_bytes() == DAMAGED
    assert ProducerTable.from_bytes(DAMAGED) == found
    for size in range(len(DAMAGED)):
        with pytest.raises(ValueError, match="a producer table"):
            ProducerTable.from_bytes(DAMAGED[:size])


def test_the_bytes_are_the_golden_ones() -> None:
    assert sample().to_bytes() == GOLDEN
    assert ProducerTable.from_bytes(GOLDEN) == sample()


def test_an_empty_table_comes_back() -> None:
    assert ProducerTable.from_bytes(ProducerTable().to_bytes()) == ProducerTable()


def test_a_table_that_was_saved_goes_on_like_one_that_was_kept() -> None:
    kept, read = sample(), ProducerTable.from_bytes(GOLDEN)
    for found in (kept, read):
        found.add(Run(-2, -1, 12, 1008, 5, T0 + 2000))
    assert read == kept


def test_every_shorter_or_longer_table_is_refused() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="a producer table"):
            ProducerTable.from_bytes(GOLDEN[:size])
    with pytest.raises(ValueError, match="goes on after its end"):
        ProducerTable.from_bytes(GOLDEN + b"\0")


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="a producer table of version 3; this GoQueue reads 1 and 2"):
        ProducerTable.from_bytes(b"\0\3" + GOLDEN[2:])


def changed(position: int, data: str) -> bytes:
    return GOLDEN[:position] + bytes.fromhex(data) + GOLDEN[position + len(data) // 2 :]


@pytest.mark.parametrize(
    "data",
    [
        changed(14 + 10, "ffffffff"),  # a next sequence below zero
        changed(14 + 23, "8000000000000000"),  # an offset below zero
        changed(14 + 23, "00000000000003eb"),  # a run past the end
        changed(14 + 31, "00000000"),  # an empty run
        changed(14 + 31, "10000001"),  # a run longer than any is kept
        changed(14 + 35, "0000000000000007"),  # a producer that is there twice
        changed(14 + 35 + 35, "00000000000000cf"),  # a run that begins inside the one before
        changed(14 + 22, "00")[: 14 + 23] + GOLDEN[14 + 35 :],  # a producer without runs
    ],
)
def test_bytes_that_make_no_sense_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        ProducerTable.from_bytes(data)


def test_a_table_from_when_limits_were_higher_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMEMBERED_RUNS", 1)
    monkeypatch.setattr(limits, "MAX_PRODUCERS_PER_PARTITION", 1)
    found = ProducerTable.from_bytes(GOLDEN)
    assert len(found) == 1
    assert ask(found, 4, 8, producer=-2, epoch=-1) == [(1000, 8)]
    with pytest.raises(OutOfSequence):
        ask(found, 3, 1, producer=-2, epoch=-1)


@pytest.mark.parametrize("runs", [1, limits.REMEMBERED_RUNS])
def test_its_size_is_about_what_it_holds(runs: int) -> None:
    tracemalloc.start()
    try:
        found = ProducerTable()
        for number in range(5000 * runs):
            turn, producer = divmod(number, 5000)
            offset = 2**40 + 1000 * number
            found.add(Run(2**33 + producer, 0, 1000 * turn, offset, 1000, T0 + number))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * held < found.size < 1.6 * held


def test_the_recipe_for_changing_the_format_stands_beside_it() -> None:
    assert "To change the bytes:" in (sequences.__doc__ or "")
    assert "golden bytes" in " ".join((sequences.__doc__ or "").split())
