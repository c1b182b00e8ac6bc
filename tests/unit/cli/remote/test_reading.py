"""Plain reading: where it goes on."""

import asyncio
from typing import Any

import pytest

from goqueue.cli.remote import reading
from goqueue.cli.remote.broker import Broker
from goqueue.cli.remote.reading import Range, read
from goqueue.model.errors import DamagedData, Quarantined


class ShrunkBroker(Broker):
    """Has four messages; when it is looked at again only two are left, and then there is one more."""

    def __init__(self) -> None:
        self.values = ["a", "b", "c", "d"]
        self.ends = [["a", "b"], ["a", "b", "new"]]

    async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        if operation == "describe_topic":
            return {"partition_offsets": {"0": {"latest": len(self.values), "stable": len(self.values)}}}
        if operation == "offsets":
            self.values = self.ends.pop(0)
            return {"offsets": {"0": len(self.values)}}
        rest = [*enumerate(self.values)][fields.get("offset", 0) :]
        return {
            "messages": [{"offset": offset, "value": value, "timestamp": ""} for offset, value in rest],
            "next_offset": len(self.values),
        }


class HeldUpBroker(Broker):
    """Has an open transaction behind its first message, and gives a page of nothing on the way."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        if operation == "describe_topic":
            return {"partition_offsets": {"0": {"latest": 5, "stable": 3}}}
        self.asked.append(fields)
        offset, end = fields.get("offset", 0), 5 if "isolation" in fields else 3
        if offset == 0:
            return {"messages": [], "next_offset": 2}
        found = [{"offset": each, "value": str(each), "timestamp": ""} for each in range(offset, end)]
        return {"messages": found, "next_offset": end}


class DamagedBroker(Broker):
    """The second of its four messages is damaged, and the third."""

    def __init__(self) -> None:
        pass

    async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        if operation == "describe_topic":
            return {"partition_offsets": {"0": {"latest": 4, "stable": 4}}}
        offset = fields.get("offset", 0)
        if offset in (1, 2):
            raise Quarantined(1, 3, where="on the broker", reason="planted")
        end = 1 if offset == 0 else 4
        found = [{"offset": each, "value": str(each), "timestamp": ""} for each in range(offset, end)]
        return {"messages": found, "next_offset": end}


@pytest.mark.parametrize("skips", [False, True])
def test_damage_is_an_error_unless_it_is_to_be_skipped_and_then_it_is_named(
    capsys: pytest.CaptureFixture[str], skips: bool
) -> None:
    async def go() -> list[str]:
        wanted = Range(skip_damage=skips)
        return [message["value"] async for page in read(DamagedBroker(), "orders", wanted) for message in page]

    if skips:
        assert asyncio.run(go()) == ["0", "3"]
        assert "partition 0: offsets 1 to 2 are damaged (planted" in " ".join(capsys.readouterr().err.split())
    else:
        with pytest.raises(
            DamagedData, match=r"offsets 1 to 2 are damaged .* goes on at 3; --skip-damage reads on behind"
        ):
            asyncio.run(go())


@pytest.mark.parametrize(("uncommitted", "found"), [(False, ["2"]), (True, ["2", "3", "4"])])
def test_reading_ends_in_front_of_an_open_transaction(uncommitted: bool, found: list[str]) -> None:
    broker = HeldUpBroker()

    async def go() -> list[str]:
        wanted = Range(uncommitted=uncommitted)
        return [message["value"] async for page in read(broker, "orders", wanted) for message in page]

    assert asyncio.run(go()) == found
    assert len(broker.asked) == 2, "nothing is asked for behind the end"
    assert all(("isolation" in fields) is uncommitted for fields in broker.asked)


def test_who_follows_skips_nothing_when_offsets_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_LOOK_AGAIN_S", 0.0)

    async def follow() -> list[str]:
        found: list[str] = []
        async for page in read(ShrunkBroker(), "orders", Range(follow=True)):
            found += [message["value"] for message in page]
            if "new" in found:
                return found
        raise AssertionError("it ended by itself")

    assert asyncio.run(follow()) == ["a", "b", "c", "d", "new"]
