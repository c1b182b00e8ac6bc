"""`goqueue log stats`: numbers that are right, from views or from records."""

import msgspec

from goqueue import codec
from goqueue.model.record import Extension, Lane, Record
from goqueue.storage.store import Store
from tests.unit.cli.typing_at import SMALL, Person, valued

FAR = 4_000_000_000_000


def numbers(person: Person, name: str) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(person.log("stats", name, "-o", "json").stdout)
    return found


def mixed(count: int) -> list[tuple[int, list[Record]]]:
    """Every fifth record in each lane, every tenth due in the far future, every tenth due long ago."""
    return [
        (
            1000 + number,
            [
                Record(
                    value=b"x" * 30,
                    priority=Lane(number % 5),
                    extension=Extension(deliver_at=FAR if number % 10 else 2000) if number % 10 < 2 else None,
                )
            ],
        )
        for number in range(count)
    ]


def test_records_lanes_and_delays_are_counted_over_sealed_segments_and_tail(person: Person) -> None:
    person.write("n", *mixed(1000), settings=SMALL)
    found = numbers(person, "n")
    assert (found["start_offset"], found["end_offset"], found["records"]) == (0, 1000, 1000)
    assert found["lanes"] == {"critical": 200, "high": 200, "normal": 200, "low": 200, "background": 200}
    assert found["delayed"] == 100
    assert found["unsealed_segments"] == 1
    assert int(str(found["sealed_segments"])) == len(person.segments("n")) - 1 > 5
    assert (found["first_timestamp"], found["last_timestamp"], found["synced_offset"]) == (1000, 1999, 1000)


def test_lost_views_change_no_number(person: Person) -> None:
    person.write("n", *mixed(500), settings=SMALL)
    before = numbers(person, "n")
    for path in (person.data_dir / "logs" / "n").glob("*.view"):
        path.unlink()
    assert {**numbers(person, "n"), "bytes": 0} == {**before, "bytes": 0}


def test_records_before_the_start_are_not_counted(person: Person) -> None:
    person.write("n", *mixed(1000), settings=SMALL)
    with Store(str(person.data_dir)) as store:
        store.open_log("n", SMALL).truncate_prefix(503)
    found = numbers(person, "n")
    assert (found["start_offset"], found["end_offset"], found["records"]) == (503, 1000, 497)
    assert found["first_timestamp"] == 1503
    assert found["delayed"] == 49


def test_offsets_the_cleaner_removed_are_told_from_records(person: Person) -> None:
    records = [(1000, [Record(key=b"%d" % (number % 3), value=b"x" * 50)]) for number in range(300)]
    person.write("n", *records, settings=SMALL)
    assert person.log("clean", "n", "--compact", "--roll").exit_code == 0
    found = numbers(person, "n")
    assert (found["start_offset"], found["end_offset"]) == (0, 300)
    assert found["records"] == len(person.objects("n")) == 3
    assert found["cleaned"] == 297


def test_an_empty_log_has_no_times(person: Person) -> None:
    with Store(str(person.data_dir)) as store:
        store.open_log("n").begin_epoch(4)
    found = numbers(person, "n")
    assert (found["records"], found["first_timestamp"], found["last_timestamp"]) == (0, None, None)
    assert found["leader_epochs"] == [{"epoch": 4, "start_offset": 0}]
    assert "4 from offset 0" in person.log("stats", "n").stdout


def test_every_log_has_a_line_and_a_named_one_a_page(person: Person) -> None:
    person.write("a", (1000, valued("x")))
    person.write("b", *mixed(20))
    overview = person.log("stats").stdout.splitlines()
    assert [line.split()[0] for line in overview] == ["log", "a", "b", "goqueue"]
    page = person.log("stats", "b").stdout
    assert "critical 4, high 4, normal 4, low 4, background 4" in page
    assert "2 not due yet" in page


def test_a_number_can_be_asked_for_while_somebody_writes(person: Person) -> None:
    with Store(str(person.data_dir)) as store:
        log = store.open_log("n")
        for number in range(3):
            log.append(codec.encode(valued("x")), now=1000)
            assert numbers(person, "n")["end_offset"] == number + 1
