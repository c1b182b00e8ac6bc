"""docs/internals/wire.md says what the code does: its tables and examples are compared with it."""

import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UnsetType

from goqueue.model import limits
from goqueue.model.errors import UnknownTopic
from goqueue.model.groups import GroupState
from goqueue.model.publishing import Acks, Durability
from goqueue.model.record import Producer
from goqueue.wire import blocks, codes, failures, frames, polls, settles
from goqueue.wire.blocks import FetchReply, FetchRequest, PublishReply, PublishRequest, Range
from goqueue.wire.frames import Welcome
from goqueue.wire.polls import PollReply, PollRequest, Row
from goqueue.wire.settles import Action, Claim, SettleRequest, Writer
from goqueue.wire.shapes import DamagedRange, Incomplete, MemberNews

PAGE = (Path(__file__).parents[3] / "docs/internals/wire.md").read_text(encoding="utf-8")

WELCOME = Welcome(frames.VERSION, limits.MAX_FRAME_BYTES, limits.MAX_CONNECTION_BYTES)
PUBLISH = PublishRequest(7, 3, Acks.ALL, Producer(1000, 2, 41)).pack()
PUBLISHED = PublishReply(Durability.DURABLE, (Range(2, 100, 1_700_000_000_000),)).pack()
FETCH = FetchRequest(7, 3, 100, limits.MIB, 1000, 500).pack()
FETCHED = FetchReply(102, 0, 102, 2).pack()
POLL = PollRequest("billing", "w-1", limits.MIB, 500, 30_000, 0).pack()
NEWS_BYTES = 179
POLL_NUMBER, TOKEN = 1_700_000_000_000_000, 0x1122334455667788
POLLED = PollReply(POLL_NUMBER, 5000, 1, 4, bytes(NEWS_BYTES), 1).pack()[: polls.POLL_REPLY.size]
ROW = Row(7, 3, TOKEN, 1, 102, 1, 2, bytes(108)).pack_head()
SETTLE = SettleRequest(Action.ACK, 4, [Claim(7, 3, POLL_NUMBER, TOKEN, ((100, 102),))]).pack()
PLEDGE = SettleRequest(
    Action.PLEDGE, 4, [Claim(7, 3, POLL_NUMBER, TOKEN, ((100, 102),))], 17, writer=Writer(1000, 2)
).pack()
SETTLED = settles.pack_settle_reply([((101, 102),)])
REFUSED = failures.pack_error(UnknownTopic("no topic 8"))


def section(heading: str) -> str:
    assert f"\n## {heading}\n" in PAGE
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[tuple[str, int, int]]:
    """The rows (part, position, width) of the layout table under a heading."""
    found = re.findall(r"^\| ([a-z0-9 ]+) \| (\d+) \|\s*(\d*)\s*\|", section(heading), re.MULTILINE)
    return [(part, int(position), int(width or 0)) for part, position, width in found]


@pytest.mark.parametrize(
    ("heading", "layout"),
    [
        ("Preface", frames.PREFACE),
        ("Welcome", frames.WELCOME),
        ("Frame", frames.HEADER),
        ("Publish request", blocks.PUBLISH_REQUEST),
        ("Publish reply", blocks.PUBLISH_REPLY),
        ("Range", blocks.RANGE),
        ("Fetch request", blocks.FETCH_REQUEST),
        ("Fetch reply", blocks.FETCH_REPLY),
        ("Poll request", polls.POLL_REQUEST),
        ("Poll reply", polls.POLL_REPLY),
        ("Row", polls.ROW),
        ("Settle request", settles.SETTLE_REQUEST),
        ("Settle row", settles.CLAIM),
        ("Offset range", settles.OFFSETS),
        ("Settle reply", settles.REFUSED),
    ],
)
def test_a_layout_table_names_every_field_of_its_struct(heading: str, layout: struct.Struct) -> None:
    table = rows(heading)
    assert table[0][1] == 0
    assert table[-1] == ("end", layout.size, 0)
    for (part, position, width), (_, following, _) in pairwise(table):
        assert position + width == following, part
    sizes = [struct.calcsize(">" + code) for code in re.findall(r"\d*[a-zA-Z]", layout.format.lstrip(">"))]
    assert [width for _, _, width in table[:-1]] == sizes


def test_the_operations_are_those_of_the_code() -> None:
    pairs = re.findall(r"\| (\d+) \| ([a-z_]+) (?=\|)", section("Operations"))
    assert {name: int(code) for code, name in pairs} == codes.CODES


def test_the_fields_of_an_error_are_those_of_the_code() -> None:
    fields = re.findall(r"^\| ([a-z]+) \| (?:string|boolean|object) \|", section("Errors"), re.MULTILINE)
    assert tuple(fields) == failures.ErrorBody.__struct_fields__


def test_the_fields_of_the_news_are_those_of_the_code() -> None:
    kinds: dict[str, Any] = {
        "string": str,
        "number": int,
        "boolean": bool,
        "array": list[str],
        "object": dict[str, str],
    }
    kinds["ranges"] = list[DamagedRange] | UnsetType
    kinds["closed"] = list[Incomplete] | UnsetType
    found = re.findall(r"^\| ([a-z_]+) \| (\w+) \| (.*) \|$", section("News"), re.MULTILINE)
    shown = {name: kinds[kind] for name, kind, _ in found if kind in kinds}
    fields = {field.name: field.type for field in msgspec.structs.fields(MemberNews)}
    assert shown == {name: str if kind is GroupState else kind for name, kind in fields.items()}
    (states,) = (meaning for name, _, meaning in found if name == "state")
    assert set(re.findall(r"\w+", states)) - {"or"} == {str(state) for state in GroupState}


def test_the_page_states_the_constants() -> None:
    acks = ", ".join(f"{each.value} {each.name.lower()}" for each in Acks)
    durability = ", ".join(f"{each.value} {each.name.lower()}" for each in Durability)
    for heading, text in (
        ("Preface", f"`{frames.MAGIC.decode()}`"),
        ("Welcome", f"`{frames.MAGIC.decode()}`"),
        ("Welcome", f"now {limits.MAX_FRAME_BYTES} |"),
        ("Welcome", f"now {limits.MAX_CONNECTION_BYTES} |"),
        ("Welcome", f"describes version {frames.VERSION}, the only one"),
        ("Frame", f": {frames.MIN_FRAME_BYTES} to max frame bytes"),
        ("Frame", f"{frames.OK} ok, {frames.ERROR} error"),
        ("Frame", f"request: {frames.OK}, or {frames.PATIENT} patient"),
        ("Frame", f"with operation {frames.GOODBYE}, status {frames.ERROR}"),
        ("Publish request", f"| {acks} |"),
        ("Publish request", f"bit {blocks.HAS_PRODUCER.bit_length() - 1}: has a producer"),
        ("Publish request", f"after {2**31 - 1} comes 0"),
        ("Publish reply", durability),
        ("Fetch request", f"more than {blocks.MAX_FETCH_BYTES} means that"),
        ("Fetch request", f"more than {limits.MAX_READ_COUNT} means that"),
        ("Fetch request", f"more than {limits.MAX_WAIT_MS} means that"),
        ("Poll request", f"more than {polls.MAX_POLL_BYTES} means that"),
        ("Poll request", f"more than {limits.MAX_POLL_MESSAGES} means that"),
        ("Poll request", f"more than {limits.MAX_WAIT_MS} means that"),
        ("Poll request", f"more than {limits.MAX_VISIBILITY_MS} means that"),
        ("Poll request", f"{polls.UNKNOWN}: does not keep track"),
        ("Poll request", f"{polls.UNKNOWN}: none"),
        ("Sequences", f"at most\n{limits.REMEMBERED_RUNS} blocks"),
        *(("Settle request", f"{action.value} {action.name.lower()}: ") for action in Action),
        ("Settle request", f"up to {limits.MAX_BACKOFF_MS}, {settles.NO_ARGUMENT}: as the topic says"),
        ("Settle request", f"{limits.MIN_VISIBILITY_MS} to {limits.MAX_VISIBILITY_MS}; else {settles.NO_ARGUMENT}"),
        ("Settle request", f"at most {limits.MAX_REJECT_CHARS} characters"),
        ("Offset range", f"at most {limits.MAX_HANDLES} offsets"),
    ):
        assert text in section(heading), (heading, text)


def test_the_examples_are_the_bytes_of_the_code() -> None:
    shown = [bytes.fromhex(block) for block in re.findall(r"```text\n(.*?)```", section("Examples"), re.DOTALL)]
    assert shown == [
        frames.pack_preface() + frames.pack_welcome(WELCOME),
        frames.pack_header(codes.PUBLISH_BLOCK, frames.OK, 9, len(PUBLISH) + 108)
        + PUBLISH
        + frames.pack_header(codes.PUBLISH_BLOCK, frames.OK, 9, len(PUBLISHED))
        + PUBLISHED,
        frames.pack_header(codes.FETCH_BLOCK, frames.OK, 10, len(FETCH))
        + FETCH
        + frames.pack_header(codes.FETCH_BLOCK, frames.OK, 10, len(FETCHED) + 108)
        + FETCHED,
        frames.pack_header(codes.FETCH_BLOCK, frames.ERROR, 11, len(REFUSED)),
        frames.pack_header(codes.POLL_BLOCK, frames.OK, 12, len(POLL))
        + POLL
        + frames.pack_header(codes.POLL_BLOCK, frames.OK, 12, len(POLLED) + NEWS_BYTES + len(ROW) + 108)
        + POLLED
        + ROW,
        frames.pack_header(codes.SETTLE_BLOCK, frames.OK, 13, len(SETTLE))
        + SETTLE
        + frames.pack_header(codes.SETTLE_BLOCK, frames.OK, 13, len(SETTLED))
        + SETTLED,
        frames.pack_header(codes.SETTLE_BLOCK, frames.OK, 14, len(PLEDGE)) + PLEDGE,
    ]
    assert f"`{REFUSED.decode()}`" in section("Examples")
