"""Whatever is added, sealed, answered and refused: no message is lost, changed or moved, and memory stays bounded."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from goqueue import codec
from goqueue.client.accumulator import Accumulator, Place
from goqueue.client.line import Line
from goqueue.model.errors import BufferFull, InvalidRecord

sizes = st.integers(0, 40) | st.sampled_from((200, 900, 1500, 20_000, 70_000))
steps = st.lists(
    st.tuples(st.just("add"), st.integers(0, 2), sizes)
    | st.tuples(st.sampled_from(("seal", "answer", "fail", "bad")), st.integers(0, 2), st.just(0)),
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(
    steps=steps,
    batch_bytes=st.sampled_from((1, 100, 1000, 40_000)),
    batch_messages=st.sampled_from((1, 3, 1000)),
    buffer_bytes=st.sampled_from((1, 1000, 50_000, 10_000_000)),
)
def test_what_is_added_comes_out_in_order_and_memory_stays_bounded(
    steps: list[tuple[str, int, int]], batch_bytes: int, batch_messages: int, buffer_bytes: int
) -> None:
    accumulator = Accumulator(
        batch_bytes=batch_bytes,
        batch_messages=batch_messages,
        buffer_bytes=buffer_bytes,
        numbered=True,
        on_done=lambda *_: None,
    )
    buffers = accumulator.buffers
    places = [Place("orders", Line(1, number), lambda *_: None) for number in range(3)]
    added: list[list[bytes]] = [[], [], []]
    taken: list[list[bytes | None]] = [[], [], []]
    numbers: Iterator[int] = iter(range(1000))

    def take(at: int, *, again: bool) -> None:
        batch = places[at].sealed.popleft()
        assert 0 < batch.count <= batch_messages
        assert len(batch.records) <= batch_bytes or batch.count == 1
        values = codec.values(batch.records)
        assert len(values) == batch.count
        taken[at] += values
        batch.records = b""
        buffers.give(batch.buffer, again=again)

    for step, at, size in steps:
        place = places[at]
        held = buffers.held
        if step == "add":
            value = b"%d/" % next(numbers) + bytes(size)
            try:
                batch = accumulator.add(place, value, None, 2)
                added[at].append(value)
                assert place.open is batch or place.sealed[-1] is batch
            except BufferFull:
                assert buffers.held <= held
        elif step == "bad":
            try:
                accumulator.add(place, b"", bytes(70_000), 2)
                raise AssertionError("a key of that size is taken")
            except (InvalidRecord, BufferFull):
                assert buffers.held <= held
        elif step == "seal":
            accumulator.seal(place)
        elif place.sealed:
            take(at, again=step == "answer")
        in_use = [*(each.open for each in places if each.open is not None), *(b for p in places for b in p.sealed)]
        assert buffers.held == sum(len(batch.buffer) for batch in in_use)
        assert buffers.held <= buffer_bytes or len(in_use) == 1
        assert buffers.held + buffers._idle_bytes <= max(buffer_bytes, buffers.held)
        assert len({id(batch.buffer) for batch in in_use}) == len(in_use), "two batches in one buffer"
        assert all(each.open is None or each.open.count for each in places)

    for at, place in enumerate(places):
        accumulator.seal(place)
        while place.sealed:
            take(at, again=True)
        assert taken[at] == added[at]
    assert buffers.held == 0
