"""`goqueue log cat`: which records are shown, and how."""

import re

import pytest

from goqueue.model.record import Extension, Lane, Record
from tests.unit.cli.typing_at import SMALL, Person, flip_bit, valued

NOON = 1769860800000  # 2026-01-31T12:00:00Z


def test_offsets_and_limit_choose_records(person: Person) -> None:
    person.write("n", (NOON, valued(*map(str, range(100)))))
    assert person.values("n", "--from-offset", "97") == ["97", "98", "99"]
    assert person.values("n", "--from-offset", "10", "--to-offset", "12") == ["10", "11"]
    assert person.values("n", "--from-offset", "50", "--limit", "2") == ["50", "51"]
    assert person.values("n", "--from-offset", "100") == []
    assert len(person.values("n")) == 100


def test_times_choose_records_in_every_notation(person: Person) -> None:
    person.write("n", *((NOON + 1000 * number, valued(str(number))) for number in range(10)))
    assert person.values("n", "--from-time", "2026-01-31T12:00:08Z") == ["8", "9"]
    assert person.values("n", "--to-time", str(NOON + 2000)) == ["0", "1"]
    assert person.values("n", "--from-time", "2026-01-31T13:00:03.500+01:00", "--to-time", "2026-01-31T12:00:05Z") == [
        "4"
    ]
    assert person.values("n", "--from-time", "2027-01-01T00:00:00Z") == []


def test_a_bad_time_is_refused(person: Person) -> None:
    person.write("n", (NOON, valued("x")))
    result = person.log("cat", "n", "--from-time", "noon")
    assert result.exit_code == 2
    assert "'noon' is no time: write RFC 3339" in result.stderr


def test_a_table_shows_what_a_record_is(person: Person) -> None:
    person.write(
        "orders",
        (
            NOON,
            [
                Record(key=b"alice", value=b"[bold]two[/bold] apples", headers=(("source", b"web"),)),
                Record(key=b"k\xff", value=b"\x1b[31m", priority=Lane.CRITICAL),
                Record(key=b"bob", value=None, extension=Extension(deliver_at=-60_000)),
                Record(value=b"", control=True, commit=True),
            ],
        ),
    )
    lines = person.log("cat", "orders").stdout.splitlines()
    assert lines == [
        "2026-01-31 UTC",
        "offset  time           lane      key    value                    headers     notes",
        "     0  12:00:00.000Z  normal    alice  [bold]two[/bold] apples  source=web",
        "     1  12:00:00.000Z  critical  k\\xff  \\x1b[31m",
        "     2  12:00:00.000Z  normal    bob    -                                    due 12:01:00.000Z, tombstone",
        '     3  12:00:00.000Z  normal    -      ""                                   commit',
    ]


def test_a_long_value_is_shortened_to_the_width(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    person.write("orders", (NOON, valued("x" * 5000, "日本" * 500)))
    lines = person.log("cat", "orders").stdout.splitlines()
    assert len(lines) == 4
    assert all(line.rstrip().endswith("…") and len(line) <= 60 for line in lines[2:])


@pytest.mark.parametrize("width", [76, 80, 100, 200])
def test_a_record_takes_one_line_at_any_usual_width(
    person: Person, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    full = Record(
        key=b"k" * 100,
        value=b"v" * 100,
        priority=Lane.BACKGROUND,
        headers=(("name", b"h" * 100),),
        extension=Extension(deliver_at=-1000, expires_at=-1000),
    )
    person.write("orders", (NOON, [full, full]))
    lines = person.log("cat", "orders").stdout.splitlines()
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)


def test_records_of_several_days_show_their_days(person: Person) -> None:
    person.write("orders", (NOON, valued("a")), (NOON + 86_400_000, valued("b")))
    shown = person.log("cat", "orders").stdout
    assert "2026-01-31T12:00:00.000Z" in shown
    assert "2026-02-01T12:00:00.000Z" in shown


def test_a_long_table_stops_and_says_how_to_go_on(person: Person) -> None:
    person.write("n", (NOON, valued(*map(str, range(51)))))
    first = person.log("cat", "n").stdout
    assert "more: --from-offset 50" in first
    assert len(first.splitlines()) == 2 + 50 + 1
    assert "more" not in person.log("cat", "n", "--from-offset", "1").stdout
    assert len(person.log("cat", "n", "--limit", "51").stdout.splitlines()) == 2 + 51


def test_what_is_not_text_is_base64_and_says_so(person: Person) -> None:
    records = [Record(key=b"text", value=b"\xff"), Record(key=b"text", value=b"text")]
    person.write("orders", (NOON, records))
    first, second = person.objects("orders")
    assert (first["key"], first["value"], first["encoding"]) == ("dGV4dA==", "/w==", "base64")
    assert (second["value"], "encoding" in second) == ("text", False)


def test_damage_is_shown_in_its_place_and_reading_goes_on(person: Person) -> None:
    person.write("n", (NOON, valued("a", "b", "c")))
    flip_bit(person.segments("n")[0], 40)
    result = person.log("cat", "n")
    assert result.exit_code == 1
    lines = [line.split()[0] for line in result.stdout.splitlines()]
    assert lines == ["2026-01-31", "offset", "0", "✗", "2026-01-31", "offset", "2"]
    assert "offset 1 damaged: " in result.stdout


def test_damage_goes_to_stderr_beside_json(person: Person) -> None:
    person.write("n", (NOON, valued("a", "b", "c")))
    flip_bit(person.segments("n")[0], 40)
    result = person.log("cat", "n", "-o", "json")
    assert result.exit_code == 1
    assert "offset 1 damaged: " in result.stderr
    assert person.values("n") == ["a", "c"]
    assert person.log("cat", "n", "--from-offset", "2", "-o", "json").exit_code == 0


def test_damage_of_the_last_record_ends_where_the_log_was_synced(person: Person) -> None:
    person.write("n", (NOON, valued("a", "b")))
    flip_bit(person.segments("n")[0], 69)
    assert "offset 1 damaged: its checksum does not match" in person.log("cat", "n").stdout


def test_a_torn_end_is_no_damage(person: Person) -> None:
    person.write("n", (NOON, valued("a")))
    with person.segments("n")[0].open("ab") as file:
        file.write(b"GQ\x01 not whole yet")
    result = person.log("cat", "n")
    assert result.exit_code == 0
    assert "the end from offset 1 on is not whole" in result.stdout


def test_sealed_segments_are_entered_at_their_index(person: Person) -> None:
    person.write("n", *((NOON + number, valued(str(number))) for number in range(1000)), settings=SMALL)
    assert len(person.segments("n")) > 5
    for number in (0, 1, 99, 100, 101, 110, 555, 998, 999):
        wanted = [str(number)]
        assert person.values("n", "--from-offset", str(number), "--limit", "1") == wanted
        assert person.values("n", "--from-time", str(NOON + number), "--limit", "1") == wanted
        assert person.values("n", "--from-time", str(NOON + number), "--to-time", str(NOON + number + 1)) == wanted


def test_a_copy_of_the_files_can_be_read_without_its_indexes(person: Person) -> None:
    person.write("n", *((NOON + number, valued(str(number))) for number in range(1000)), settings=SMALL)
    for path in (person.data_dir / "logs" / "n").iterdir():
        if path.suffix in (".index", ".timeindex", ".view"):
            path.unlink()
    assert person.values("n", "--from-offset", "500", "--limit", "2") == ["500", "501"]
    assert person.values("n", "--from-time", str(NOON + 700), "--limit", "1") == ["700"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from-offset", "-1"], "--from-offset is -1; it must be at least 0"),
        (["--limit", "0"], "--limit is 0; it must be at least 1"),
        (["--limit", "many"], "--limit is 'many'; it must be a whole number; see goqueue log cat --help"),
        (["--from-offset", "5", "--to-offset", "4"], "--from-offset 5 comes after --to-offset 4"),
        (["--from-time", "5", "--to-time", "4"], "--from-time 5 comes after --to-time 4"),
    ],
)
def test_bounds_that_cannot_be_right_are_refused_in_the_words_typed(
    person: Person, options: list[str], message: str
) -> None:
    person.write("n", (NOON, valued("x")))
    result = person.log("cat", "n", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_a_header_name_that_is_no_text_is_spelled_out_or_base64(person: Person) -> None:
    person.write("n", (NOON, [Record(value=b"x", headers=(("a\udcff", b"1"), ("b", b"2")))]))
    assert "a\\xff=1, b=2" in person.log("cat", "n").stdout
    (found,) = person.objects("n")
    assert found["headers"] == {"Yf8=": "1", "Yg==": "2"}
    assert (found["name_encoding"], "encoding" in found) == ("base64", False)


def test_absent_and_empty_are_told_from_values_that_look_like_them(person: Person) -> None:
    person.write(
        "n", (NOON, [Record(key=None, value=b""), Record(key=b"-", value=b'""'), Record(key=b" ", value=b"x")])
    )
    rows = [line.split("normal  ")[1].split() for line in person.log("cat", "n").stdout.splitlines()[2:]]
    assert rows == [["-", '""'], ['"-"', '"\\"\\""'], ['"', '"', "x"]]


def test_no_line_of_a_pipe_ends_with_a_space(person: Person) -> None:
    person.write("n", (NOON, [Record(value=b"x", headers=(("a", b"b"),)), Record(key=b"k" * 20, value=b"short")]))
    for command in ("cat", "stats", "verify"):
        lines = person.log(command, "n").stdout.splitlines()
        assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize(
    ("width", "header"),
    [
        ("100", "offset  time           lane        key      value                 headers       notes"),
        ("60", "offset  time       lane        key      value"),
        ("45", "offset  time       key      value"),
    ],
)
def test_a_narrow_terminal_does_without_some_columns(
    person: Person, monkeypatch: pytest.MonkeyPatch, width: str, header: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    full = Record(
        key=b"k" * 7, value=b"v" * 20, priority=Lane.BACKGROUND, headers=(("name", b"h" * 7),),
        extension=Extension(deliver_at=-1000),
    )  # fmt: skip
    person.write("n", (NOON, [full]))
    lines = person.log("cat", "n").stdout.splitlines()
    assert lines[1].split() == header.split()
    assert len(lines) == 3
    assert all(len(line) <= int(width) for line in lines)


def test_a_very_narrow_terminal_gets_a_list(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    person.write("n", (NOON, [Record(key=b"alice", value=b"v" * 100)]))
    lines = person.log("cat", "n").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["2026-01-31", "offset", "time", "lane", "key", "value"]
    assert all(len(line) <= 30 for line in lines)


def test_a_long_table_has_one_header_unless_a_later_page_needs_another(person: Person) -> None:
    person.write("n", (NOON, valued(*map(str, range(1000)))))
    assert person.log("cat", "n", "--limit", "1000").stdout.count("offset") == 1
    person.write("n", (NOON, [Record(key=b"long enough", value=b"x")]))
    assert person.log("cat", "n", "--limit", "2000").stdout.count("offset") == 2


def test_a_segment_that_cannot_be_opened_is_named_and_the_others_are_read(person: Person) -> None:
    person.write("n", *((NOON, valued(str(number))) for number in range(300)), settings=SMALL)
    spoiled = person.segments("n")[1]
    spoiled.unlink()
    spoiled.mkdir()
    table = person.log("cat", "n", "--limit", "1000")
    assert table.exit_code == 1
    assert f"cannot be read: {spoiled}: is not a regular file" in table.stdout
    values = person.values("n")
    assert (values[0], values[-1]) == ("0", "299")
    assert person.log("cat", "n", "-o", "json").exit_code == 1


def test_the_end_of_a_log_that_cannot_be_opened_is_not_taken_for_nothing(person: Person) -> None:
    person.write("n", (NOON, valued("x")))
    person.segments("n")[0].unlink()
    (person.data_dir / "logs" / "n" / f"{0:020d}.log").mkdir()
    assert person.log("cat", "n").exit_code == 1
    assert person.log("verify", "n").exit_code == 1


def test_colours_make_no_line_wider_than_the_terminal(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    due = Record(value=b"v" * 100, priority=Lane.HIGH, extension=Extension(deliver_at=-1000, expires_at=-1000))
    person.write("n", (NOON, [due, Record(value=b"x")]))
    shown = person.log("cat", "n").stdout
    assert "\x1b[" in shown
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in shown.splitlines())
