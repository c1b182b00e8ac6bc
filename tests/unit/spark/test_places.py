"""Positions, what lies between two of them, and how it is cut and admitted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goqueue.model.errors import InvalidRequest
from goqueue.spark.places import Position, Stretch, admit, split, stretches

IDS = {"a": "01", "b": "02"}


def at(**offsets: dict[int, int]) -> Position:
    return Position({topic: IDS[topic] for topic in offsets}, offsets)


def test_a_position_is_the_same_after_json() -> None:
    position = at(b={1: 5, 0: 3}, a={10: 1, 9: 2})
    text = json.dumps(position.to_json())
    assert Position.from_json(json.loads(text)) == position
    assert text == json.dumps(at(a={9: 2, 10: 1}, b={0: 3, 1: 5}).to_json()), "Spark compares the text"


@pytest.mark.parametrize("saved", [{"a": {"0": 5}}, {"a": {"id": "1", "offsets": [1]}}, {"a": 5}])
def test_offsets_of_another_source_are_refused(saved: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="written by something else"):
        Position.from_json(saved)


def test_what_lies_between() -> None:
    found = stretches(at(a={0: 5, 1: 7}), at(a={0: 9, 1: 7, 2: 4}, b={0: 2}))
    assert found == [
        Stretch("a", "01", 0, 5, 9),
        Stretch("a", "01", 2, 0, 4, is_new=True),
        Stretch("b", "02", 0, 0, 2, is_new=True),
    ]


def test_a_topic_made_again_begins_anew() -> None:
    assert stretches(Position({"a": "old"}, {"a": {0: 50}}), at(a={0: 9})) == [Stretch("a", "01", 0, 0, 9, is_new=True)]


SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=5)


@given(SIZES, st.none() | st.integers(1, 50), st.none() | st.integers(1, 300))
def test_parts_are_the_whole(sizes: list[int], least: int | None, most: int | None) -> None:
    whole = [Stretch("a", "01", number, 10, 10 + size) for number, size in enumerate(sizes)]
    parts = split(whole, least=least, most_records=most)
    for each in whole:
        own = [part for part in parts if part.partition == each.partition]
        assert [part.start for part in own] == [each.start, *(part.end for part in own[:-1])]
        assert own[-1].end == each.end
    assert all(part.size > 0 for part in parts)
    assert least is None or len(parts) >= min(least, sum(sizes))
    assert most is None or all(part.size <= most for part in parts)


@given(SIZES, st.integers(1, 2000))
def test_what_is_admitted_is_bounded_and_goes_on(sizes: list[int], most: int) -> None:
    start, end = at(a=dict.fromkeys(range(len(sizes)), 5)), at(a={n: 5 + size for n, size in enumerate(sizes)})
    reached = admit(start, end, most)
    taken = [each.size for each in stretches(start, reached)]
    assert sum(taken) == min(most, sum(sizes))
    if most >= len(sizes):
        assert len(taken) == len(sizes), "a partition got nothing, though it would have gone round"


def test_bytes_are_admitted_by_what_messages_cost() -> None:
    start, end = at(a={0: 0}, b={0: 0}), at(a={0: 100}, b={0: 100})
    assert admit(start, end, 10_000, {"a": 50.0, "b": 50.0}) == end
    taken = stretches(start, admit(start, end, 5_000, {"a": 90.0, "b": 10.0}))
    assert sum(each.size for each in taken) == 100
    assert stretches(start, admit(start, end, 1, {"a": 90.0, "b": 10.0})) != [], "a message that is too large is stuck"
