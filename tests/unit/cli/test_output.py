"""Other people's bytes on a terminal."""

import pytest

from goqueue.cli.output import complain, note, printable, say, show_bytes, show_offsets, show_size


def test_nothing_a_terminal_could_act_on_gets_through() -> None:
    shown = printable("a\x1b[31mb\x07\r\n\t\x9b\u202e\u200b\udcff")
    assert shown.isprintable()
    assert shown.startswith("a\\x1b[31mb\\x07\\r\\n\\t\\x9b")


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"plain", "plain"), ("日本".encode(), "日本"), (b"\xff\x00", "\\xff\\x00"), (b"[bold]x[/]", "[bold]x[/]")],
)
def test_bytes_are_shown_as_text_or_spelled_out(data: bytes, expected: str) -> None:
    assert show_bytes(data, 100) == expected


def test_a_letter_cut_in_half_by_shortening_is_not_taken_for_damage() -> None:
    assert "\\x" not in show_bytes("é".encode() * 1000, 7)
    assert show_bytes(b"x" * 10_000_000, 5) == "x" * 6


def test_sizes_and_offsets_read_like_speech() -> None:
    assert [show_size(size) for size in (0, 1023, 1024, 3 << 29)] == ["0 bytes", "1,023 bytes", "1.0 KiB", "1.5 GiB"]
    assert [show_offsets(4, 5), show_offsets(4, 9), show_offsets(4, None)] == ["4", "4 to 8", "4 and after"]


def test_a_line_is_never_taken_for_markup_nor_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    line = "[bold]x[/bold] :smile: [/nothing] " + "long " * 50 + "end"
    say(line)
    note(line)
    complain(line)
    shown = capsys.readouterr()
    assert shown.out == f"{line}\n"
    assert shown.err == f"note: {line}\nerror: {line}\n"
