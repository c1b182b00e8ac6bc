"""Messages as lines of a table, or through a template."""

import io
from typing import Any

import pytest

from goqueue.cli.output import Screen
from goqueue.cli.remote.message_rows import MessageTable, Template
from goqueue.model.errors import InvalidRequest


def message(offset: int = 0, **fields: Any) -> dict[str, Any]:
    plain = {
        "offset": offset, "partition": 0, "timestamp": "2026-01-31T12:00:00.000Z", "key": None, "value": "v",
        "headers": {}, "priority": "normal", "message_id": f"t:0:{offset}",
    }  # fmt: skip
    return {**plain, **fields}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> MessageTable:
    monkeypatch.setenv("COLUMNS", "60")
    return MessageTable(Screen(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")), with_partition=True)


def test_a_page_has_its_day_and_a_header_above(table: MessageTable) -> None:
    assert table.page([message(value="two apples", key="alice")]) == (
        "2026-01-31 UTC\n"
        "part  offset  time           lane    key    value\n"
        "   0       0  12:00:00.000Z  normal  alice  two apples\n"
    )


def test_the_header_comes_again_only_for_a_new_day_or_column(table: MessageTable) -> None:
    table.page([message()])
    assert table.page([message(1)]) == "   0       1  12:00:00.000Z  normal  -    v\n"
    later = table.page([message(2, timestamp="2026-02-01T00:00:00.000Z")]).splitlines()
    assert later[0] == "2026-02-01 UTC"
    assert later[1].startswith("part  offset")
    assert "headers" in table.page([message(3, timestamp="2026-02-01T00:00:00.000Z", headers={"a": "b"})])


def test_a_long_value_is_cut_and_bytes_are_spelled_out(table: MessageTable) -> None:
    line = table.page([message(value="x" * 500)]).splitlines()[-1]
    assert len(line) == 60
    assert line.endswith("…")
    assert table.page([message(value="/wA=", encoding="base64")]).endswith(r"\xff\x00" + "\n")


def test_handles_stand_below_their_messages_whole() -> None:
    screen = Screen(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    table = MessageTable(screen, with_partition=True, with_handles=True)
    handle = "t:0:0:1:" + "n" * 32
    page = table.page([message(delivery_count=2, receipt_handle=handle)])
    assert page.endswith(f"\n  {handle}\n")
    assert "  try  " in page


def test_a_template_takes_fields_and_escapes() -> None:
    one = message(7, key="k", delivery_count=2, receipt_handle="h", topic="t", headers={"a": "b"})
    assert Template(r"%t/%p/%o %k=%v %h %l %d %r %i 5%%\t|").fill(one) == b"t/0/7 k=v a=b normal 2 h t:0:7 5%\t|\n"
    assert Template(r"%v\0").fill(one) == b"v\0"
    assert Template("%v").fill(message(value=None)) == b"\n"
    assert Template("%k:%v").fill(message(key="aw==", value="/w==", encoding="base64")) == b"k:\xff\n"


@pytest.mark.parametrize("text", ["%x", "%"])
def test_a_template_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--format: there is no"):
        Template(text)
