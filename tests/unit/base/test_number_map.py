"""A map from numbers to numbers in two arrays: a dictionary in all but what it costs."""

import sys
from random import Random

import pytest

from goqueue.base.number_map import NumberMap


def test_a_new_one_is_empty() -> None:
    numbers = NumberMap()
    assert (len(numbers), list(numbers), numbers.get(0), numbers.pop(0)) == (0, [], None, None)


def test_values_are_found_by_their_keys_and_listed_in_their_order() -> None:
    numbers = NumberMap()
    for key in (5, 1, 9, 3):
        numbers.set(key, key * 10)
    numbers.set(5, 0)
    assert [numbers.get(key) for key in (1, 3, 5, 9, 4, 10)] == [10, 30, 0, 90, None, None]
    assert list(numbers) == [(1, 10), (3, 30), (5, 0), (9, 90)]


def test_what_is_popped_is_gone() -> None:
    numbers = NumberMap()
    numbers.set(1, 10)
    numbers.set(2, 20)
    assert numbers.pop(1) == 10
    assert (numbers.pop(1), list(numbers)) == (None, [(2, 20)])


def test_it_may_be_changed_while_somebody_goes_through_it() -> None:
    numbers = NumberMap()
    for key in range(10):
        numbers.set(key, key)
    for key, value in numbers:
        numbers.set(key, value + 100)
        numbers.pop(key - 1)
        numbers.set(-key, 0)
    assert numbers.get(9) == 109


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0])
def test_numbers_have_64_bits(number: int) -> None:
    numbers = NumberMap()
    numbers.set(number, number)
    assert list(numbers) == [(number, number)]


def test_an_entry_costs_sixteen_bytes() -> None:
    numbers = NumberMap()
    for key in range(10_000):
        numbers.set(key, key)
    assert sys.getsizeof(numbers._keys) + sys.getsizeof(numbers._values) < 10_000 * 20


def test_any_history_is_that_of_a_dictionary() -> None:
    rng = Random(1)
    numbers, model = NumberMap(), dict[int, int]()
    for _ in range(5000):
        key, value = rng.randrange(200), rng.randrange(10**12)
        if rng.random() < 0.4:
            assert numbers.pop(key) == model.pop(key, None)
        else:
            numbers.set(key, value)
            model[key] = value
        assert numbers.get(key) == model.get(key)
    assert (list(numbers), len(numbers)) == (sorted(model.items()), len(model))
