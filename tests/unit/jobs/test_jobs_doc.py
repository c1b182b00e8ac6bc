"""docs/internals/jobs.md says what the code does: its tables and examples are compared with it."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec

from goqueue.broker.letters import REDRIVEN
from goqueue.jobs import redrive_records
from goqueue.jobs.letters import LetterFilter
from goqueue.jobs.records import Event, LastRun, ScheduleRestored
from goqueue.jobs.redrive import Batch, Plan, Redrive
from goqueue.jobs.redrives import Redrives
from goqueue.jobs.schedules import Schedules
from goqueue.jobs.timetable import Cron, Every
from goqueue.model import limits
from goqueue.model.jobs import Missed
from goqueue.producers.own import Work, run_producer
from tests.unit.jobs.test_records import GOLDEN
from tests.unit.jobs.test_redrive_records import GOLDEN as GOLDEN_OF_REDRIVES

PAGE = (Path(__file__).parents[3] / "docs/internals/jobs.md").read_text(encoding="utf-8")
Table = list[list[str]]


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in PAGE
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def tables(text: str) -> list[Table]:
    """The cells of its tables, without the heads."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]] for block in blocks
    ]


def json_type(found: Any) -> str:
    match found:
        case msgspec.inspect.StructType(cls=cls):
            return f"`{cls.__name__.lower()}`"
        case msgspec.inspect.EnumType(cls=cls):
            choices = [f"`{each.value}`" for each in cls]
            return " or ".join([", ".join(choices[:-1]), choices[-1]])
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(map(json_type, types))
    names: dict[type, str] = {
        msgspec.inspect.StrType: "string",
        msgspec.inspect.IntType: "integer",
        msgspec.inspect.BoolType: "boolean",
        msgspec.inspect.NoneType: "null",
        msgspec.inspect.RawType: "object",
        msgspec.inspect.DictType: "object",
        msgspec.inspect.FloatType: "number",
        msgspec.inspect.VarTupleType: "array",
    }
    return names[type(found)]


def described(struct: type) -> list[tuple[str, str]]:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return [
        (field.name, json_type(field.type) + ("" if field.required else ", may be left out")) for field in info.fields
    ]


def read_records(table: Table) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    kind = ""
    for name, field, is_a, _ in table:
        kind = name.strip("`") or kind
        found.setdefault(kind, []).append((field.strip("`"), is_a))
    return found


def tags(events: Any) -> dict[str, list[tuple[str, str]]]:
    return {event.__struct_config__.tag: described(event) for event in events}


def test_the_machines_are_those_of_the_code() -> None:
    head = " ".join(PAGE.partition("\n## ")[0].split())
    assert f"two machines with the keys `{Schedules.name}` and `{Redrives.name}`" in head


def test_the_producer_ids_are_those_of_the_code() -> None:
    head = PAGE.partition("\n## ")[0]
    kinds = ", ".join(f"{work.value} for {work.name.lower().replace('_', ' ')}" for work in Work)
    assert kinds in head
    assert limits.OWN_PRODUCERS == 1 << 61
    turn = 32768
    assert f"run's number divided by {turn}" in head
    assert f"its number modulo {turn}" in head
    assert run_producer(0, turn - 1).producer_epoch == turn - 1
    assert run_producer(0, turn) == run_producer(1, 0)


def test_every_field_of_every_record_is_there() -> None:
    recorded, objects = tables(section("Records"))
    assert read_records(recorded) == tags(set(get_args(Event)) - {ScheduleRestored})
    assert read_records(tables(section("Snapshots"))[0]) == tags({ScheduleRestored})
    assert read_records(objects) == {
        "cron": [("type", "`cron`"), *described(Cron)],
        "every": [("type", "`every`"), *described(Every)],
        "lastrun": described(LastRun),
    }


def test_every_field_of_every_record_of_redrives_is_there() -> None:
    recorded, objects = tables(section("Records of redrives"))
    assert read_records(recorded) == tags(get_args(redrive_records.Event))
    assert read_records(objects) == {
        struct.__name__.lower(): described(struct) for struct in (Plan, LetterFilter, Batch, Redrive)
    }


def test_what_is_said_of_letters_is_so() -> None:
    life = " ".join(section("The life of a letter").split())
    assert f"group number {REDRIVEN}," in life
    assert f"at most {limits.REDRIVEN_AT_ONCE} letters at a time" in life
    assert f"The last {limits.REDRIVES_REMEMBERED} that have ended" in life
    assert f"at most {limits.MAX_JOB_ERROR} characters" in section("Records of redrives")


def test_what_happens_to_a_run_is_written_in_records_that_are_there() -> None:
    (table,) = tables(section("The life of a run"))
    written = {name for cells in table for name in re.findall(r"`(\w+)`", cells[3])}
    assert written <= tags(get_args(Event)).keys()
    assert {name for name in tags(get_args(Event)) if name.startswith("run")} <= written


def test_what_becomes_of_missed_runs_is_said_of_every_policy() -> None:
    (table,) = tables(section("Missed runs"))
    assert [cells[0] for cells in table] == [f"`{policy}`" for policy in Missed]


def test_the_limits_are_those_of_the_code() -> None:
    missed, life = section("Missed runs"), " ".join(section("The life of a run").split())
    assert f"more than {limits.RUN_GRACE_MS // 1000} seconds late" in missed
    assert f"the newest {limits.MAX_RUNS_MADE_UP}, oldest first, {limits.RUNS_AT_ONCE} at a time" in missed
    assert (
        f"At most {limits.RUNS_AT_ONCE} runs of one schedule are pending, and {limits.MAX_PENDING_RUNS} in all" in life
    )
    assert f"at most {limits.MAX_JOB_ERROR} characters" in section("Records")


def test_the_examples_are_the_golden_bytes() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", section("Examples"), re.DOTALL)
    assert [line.encode() for line in block.splitlines()] == [*GOLDEN, *GOLDEN_OF_REDRIVES]
