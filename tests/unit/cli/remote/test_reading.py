"""Plain reading: where it goes on."""

import asyncio
from typing import Any

import pytest

from goqueue.cli.remote import reading
from goqueue.cli.remote.broker import Broker
from goqueue.cli.remote.reading import Range, read


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
