"""Choosing what to measure."""

import pytest

from bench.__main__ import ROOMS, choose


def test_everything_is_measured_when_nothing_is_named() -> None:
    assert choose([]) == {room: list(parts) for room, parts in ROOMS.items()}


def test_a_room_means_all_its_parts() -> None:
    assert choose(["storage"]) == {"storage": list(ROOMS["storage"])}


def test_parts_come_once_and_in_the_order_of_their_room() -> None:
    assert choose(["broker:fetch", "codec", "broker:publish", "broker:fetch"]) == {
        "codec": list(ROOMS["codec"]),
        "broker": ["publish", "fetch"],
    }


@pytest.mark.parametrize("name", ["kitchen", "broker:sink", "kitchen:sink", ":"])
def test_what_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no bench for"):
        choose([name])
