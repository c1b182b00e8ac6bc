"""Deadlines: each key once, at its earliest time, in order, and nothing kept of those that no longer count."""

from random import Random

from goqueue.base.deadlines import Deadlines


def test_nothing_armed_is_never_due() -> None:
    deadlines = Deadlines[str]()
    assert (deadlines.earliest, deadlines.due(10**18), len(deadlines)) == (None, [], 0)


def test_those_due_come_earliest_first_and_once() -> None:
    deadlines = Deadlines[str]()
    for key, when in (("c", 30), ("a", 10), ("b", 20), ("d", 40)):
        deadlines.arm(key, when)
    assert deadlines.earliest == 10
    assert deadlines.due(9) == []
    assert deadlines.due(30) == ["a", "b", "c"]
    assert deadlines.due(30) == []
    assert (deadlines.earliest, len(deadlines)) == (40, 1)


def test_those_of_the_same_time_come_in_the_order_in_which_they_were_armed() -> None:
    deadlines = Deadlines[str]()
    for key in "zyx":
        deadlines.arm(key, 5)
    assert deadlines.due(5) == ["z", "y", "x"]


def test_keys_are_never_compared() -> None:
    deadlines = Deadlines[object]()
    keys = [object(), object(), 1, "one", None]
    for key in keys:
        deadlines.arm(key, 5)
    assert deadlines.due(5) == keys


def test_a_later_time_changes_nothing() -> None:
    deadlines = Deadlines[str]()
    deadlines.arm("a", 10)
    deadlines.arm("a", 20)
    assert (deadlines.earliest, len(deadlines)) == (10, 1)
    assert deadlines.due(15) == ["a"]
    assert (deadlines.earliest, deadlines.due(20)) == (None, [])


def test_an_earlier_time_takes_the_place_of_the_later_one() -> None:
    deadlines = Deadlines[str]()
    deadlines.arm("a", 20)
    deadlines.arm("a", 10)
    assert (deadlines.earliest, len(deadlines)) == (10, 1)
    assert deadlines.due(20) == ["a"], "once, not twice"


def test_a_disarmed_key_is_not_due() -> None:
    deadlines = Deadlines[str]()
    deadlines.arm("a", 10)
    deadlines.arm("b", 20)
    deadlines.disarm("a")
    deadlines.disarm("never armed")
    assert deadlines.earliest == 20
    assert deadlines.due(100) == ["b"]


def test_a_key_armed_again_after_it_was_disarmed_or_due_has_its_new_time() -> None:
    deadlines = Deadlines[str]()
    deadlines.arm("a", 10)
    deadlines.disarm("a")
    deadlines.arm("a", 30)
    assert deadlines.due(29) == []
    assert deadlines.due(30) == ["a"]
    deadlines.arm("a", 30)
    assert deadlines.due(30) == ["a"]


def test_the_same_time_again_is_due_once() -> None:
    deadlines = Deadlines[str]()
    deadlines.arm("a", 10)
    deadlines.disarm("a")
    deadlines.arm("a", 10)
    assert deadlines.due(10) == ["a"]


def test_what_no_longer_counts_does_not_pile_up() -> None:
    deadlines = Deadlines[int]()
    deadlines.arm(0, 1)
    for _ in range(1000):
        deadlines.arm(1, 50)  # the same time every time: the leavings look like the one that counts
        deadlines.disarm(1)
    for when in range(3000, 2000, -1):
        deadlines.arm(2, when)
    assert len(deadlines._heap) < 30
    assert deadlines.due(5000) == [0, 2]


def test_any_history_is_that_of_a_plain_table() -> None:
    for seed in range(200):
        rng = Random(seed)
        deadlines, model = Deadlines[int](), dict[int, int]()
        now = 0
        for _ in range(60):
            key, when = rng.randrange(8), now + rng.randrange(-2, 30)
            match rng.randrange(4):
                case 0 | 1:
                    deadlines.arm(key, when)
                    model[key] = min(model.get(key, when), when)
                case 2:
                    deadlines.disarm(key)
                    model.pop(key, None)
                case _:
                    now += rng.randrange(10)
                    found = deadlines.due(now)
                    assert [model[each] for each in found] == sorted(model[each] for each in found), seed
                    assert set(found) == {each for each, at in model.items() if at <= now}, seed
                    assert len(found) == len(set(found)), seed
                    model = {each: at for each, at in model.items() if at > now}
            assert len(deadlines) == len(model), seed
            assert deadlines.earliest == min(model.values(), default=None), seed
