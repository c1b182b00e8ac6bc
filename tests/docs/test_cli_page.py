"""docs/cli.md names every command, option, exit code and JSON field there is."""

import re

import msgspec
import pytest
from typer.testing import CliRunner

from goqueue.cli import failures
from goqueue.cli.commands import app
from goqueue.cli.log.measure import LogNumbers
from goqueue.cli.log.rows import record_object
from goqueue.cli.log.verify import UNREADABLE, Extent, Found, Verified, _object
from goqueue.model.record import Extension, Producer, Record
from goqueue.storage.verify import Severity
from tests.docs.markdown import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def missing(words: "set[str]") -> "set[str]":
    return {word for word in words if not re.search(rf"[` ]{re.escape(word)}[` ]", PAGE)}


def test_every_field_of_stats_is_there() -> None:
    assert not missing({field.name for field in msgspec.structs.fields(LogNumbers)})


def test_every_field_of_a_record_is_there() -> None:
    everything = Record(
        key=b"\xff",
        headers=(("a\udcff", b"x"),),
        control=True,
        extension=Extension(
            deliver_at=1, expires_at=1, event_time=1, producer=Producer(1, 1, 1), transaction=1, blob=b"x"
        ),
    )
    fields = {field.name for field in msgspec.structs.fields(Producer)}
    assert not missing(fields | record_object(everything).keys())


def test_every_field_and_severity_of_verify_is_there() -> None:
    found = _object([Verified("n", Extent(), [Found(Severity.NOTE, "/file", 0, 0, 0, "reason", "advice")])])
    findings = found["findings"]
    assert isinstance(findings, list)
    assert not missing(found.keys() | findings[0].keys() | {UNREADABLE, *Severity})


@pytest.mark.parametrize("command", ["append", "cat", "verify", "stats", "list", "clean", "demo"])
def test_every_command_and_option_is_there(command: str) -> None:
    help_page = CliRunner().invoke(app, ["log", command, "--help"]).stdout
    options = set(re.findall(r"^  (?:-o, )?(--[a-z-]+)", help_page, re.MULTILINE)) - {"--help", "--output"}
    assert options
    assert f"| `{command}" in PAGE
    assert not missing(options)


def test_the_exit_codes_are_those_of_the_command() -> None:
    rows = re.compile(r"^\| (\d[\d +n]*) \|", re.MULTILINE)
    assert failures.__doc__ is not None
    assert rows.findall(PAGE) == rows.findall(failures.__doc__)
