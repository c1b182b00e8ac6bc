"""Schedules, dead letters and redrives as every door has them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue.api.errors import status_of
from goqueue.model import limits
from goqueue.model.errors import GoQueueError, InvalidRequest
from goqueue.model.times import show_time
from tests.support.loop import run
from tests.unit.api.services import Served, served
from tests.unit.broker.brokers import T0

MINUTE, HOUR = 60_000, 3_600_000
SCHEDULE: dict[str, Any] = {"topic": "orders", "message": {"value": "tick"}, "every": "1m"}


class Rig:
    def __init__(self, broker: Served) -> None:
        self.served = broker
        self.broker = broker.broker
        self.clock = broker.clock

    async def call(self, operation: str, **fields: Any) -> Any:
        return await self.served.call(operation, **fields)

    async def refused(self, operation: str, **fields: Any) -> tuple[int, str, str]:
        with pytest.raises(GoQueueError) as caught:
            await self.call(operation, **fields)
        return status_of(caught.value), caught.value.code, str(caught.value)

    async def wait(self, ms: int) -> None:
        """The clock goes on, and is looked at."""
        self.clock.now += ms
        self.broker.schedules.look()
        while self.broker.schedules._at_work:
            await asyncio.wait(list(self.broker.schedules._at_work.values()))

    async def values(self, partition: int = 0) -> list[str]:
        found = await self.call("read_partition", topic="orders", partition=partition)
        return [message["value"] for message in found["messages"]]

    async def kill(self, *messages: dict[str, Any], reason: str = "") -> None:
        """Publish messages; a consumer rejects them."""
        await self.call("publish_batch", topic="orders", messages=list(messages))
        member = (await self.call("join_group", group="billing", client_id="w", topics=["orders"]))["member_id"]
        polled = await self.call("poll", group="billing", member_id=member, timeout=0)
        handles = [message["receipt_handle"] for message in polled["messages"]]
        await self.call("reject", receipt_handles=handles, reason=reason)
        await self.call("leave_group", group="billing", member_id=member)
        while self.broker._undertaker._at_work:
            await asyncio.wait(list(self.broker._undertaker._at_work.values()))

    async def ended(self, redrive: str) -> Any:
        while redrive in self.broker.redrives._workers:
            await asyncio.sleep(0.001)
        return await self.call("describe_redrive", redrive=redrive)


@asynccontextmanager
async def rigged(path: Path, partitions: int = 1) -> AsyncIterator[Rig]:
    async with served(path) as broker:
        await broker.call("create_topic", name="orders", num_partitions=partitions)
        yield Rig(broker)


# --- schedules


def test_a_schedule_is_shown_with_all_there_is_to_know(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path, 3) as rig:
            made = await rig.call(
                "create_schedule",
                topic="orders",
                message={
                    "key": "k",
                    "value": "v",
                    "headers": {"a": "1"},
                    "priority": "high",
                    "partition": 2,
                    "ttl": "1h30m",
                },
                cron="30 3 * * *",
                time_zone="Europe/Berlin",
                missed="once",
            )
            assert made == {
                "id": made["id"],
                "topic": "orders",
                "message": {
                    "key": "k",
                    "value": "v",
                    "headers": {"a": "1"},
                    "priority": "high",
                    "partition": 2,
                    "ttl": "1h30m",
                },
                "cron": "30 3 * * *",
                "time_zone": "Europe/Berlin",
                "missed": "once",
                "paused": False,
                "created": show_time(T0),
                "next_run": "2023-11-15T02:30:00.000Z",
                "last_run": None,
                "runs": 0,
                "missed_runs": 0,
                "failures": 0,
                "last_error": None,
            }
            assert await rig.call("describe_schedule", schedule=made["id"]) == made
            assert await rig.call("list_schedules") == {"schedules": [made]}

    run(go())


def test_a_run_shows_where_its_message_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            made = await rig.call("create_schedule", **SCHEDULE)
            assert made["every"] == "1m"
            assert made["message"] == {"key": None, "value": "tick", "headers": {}, "priority": "normal"}
            await rig.wait(MINUTE)
            found = await rig.call("describe_schedule", schedule=made["id"])
            assert (found["runs"], found["next_run"]) == (1, show_time(T0 + 2 * MINUTE))
            assert found["last_run"] == {
                "due": show_time(T0 + MINUTE),
                "partition": 0,
                "offset": 0,
                "message_id": "orders:0:0",
            }
            assert await rig.values() == ["tick"]

    run(go())


def test_bytes_go_in_and_come_out_as_base64(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            message = {"value": "/w==", "key": "aw==", "headers": [["a", "MQ=="], ["a", "/w=="]], "encoding": "base64"}
            made = await rig.call("create_schedule", **SCHEDULE | {"message": message})
            shown = made["message"]
            assert shown == {**message, "priority": "normal"}
            await rig.wait(MINUTE)
            (found,) = (await rig.call("read_partition", topic="orders", partition=0))["messages"]
            assert {name: found[name] for name in message} == message
            null = await rig.call("create_schedule", **SCHEDULE | {"message": {"tombstone": True, "key": "k"}})
            assert null["message"]["value"] is None

    run(go())


def test_a_schedule_is_paused_and_goes_on_and_misses_as_it_says(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            made = await rig.call("create_schedule", **SCHEDULE | {"missed": "all"})
            paused = await rig.call("change_schedule", schedule=made["id"], paused=True)
            assert (paused["paused"], paused["next_run"]) == (True, None)
            await rig.wait(5 * MINUTE)
            assert await rig.values() == []
            going = await rig.call("change_schedule", schedule=made["id"], paused=False)
            assert (going["next_run"], going["missed_runs"]) == (show_time(T0 + 6 * MINUTE), 0)
            await rig.wait(3 * MINUTE)
            assert await rig.values() == ["tick"] * 3
            await rig.call("change_schedule", schedule=made["id"], missed="once")
            await rig.wait(HOUR)
            found = await rig.call("describe_schedule", schedule=made["id"])
            assert (found["runs"], found["missed_runs"]) == (4, 59)

    run(go())


def test_a_change_leaves_what_it_does_not_name(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            made = await rig.call("create_schedule", **SCHEDULE)
            assert await rig.call("change_schedule", schedule=made["id"]) == made
            changed = await rig.call("change_schedule", schedule=made["id"], message={"value": "tock", "ttl": 5})
            assert changed == {**made, "message": {**made["message"], "value": "tock", "ttl": "5s"}}
            changed = await rig.call("change_schedule", schedule=made["id"], cron="@hourly")
            assert (changed["cron"], changed["time_zone"], "every" in changed) == ("@hourly", "UTC", False)
            assert await rig.call("delete_schedule", schedule=made["id"]) == {"deleted": True, "id": made["id"]}
            for operation in ("describe_schedule", "change_schedule", "delete_schedule"):
                assert (await rig.refused(operation, schedule=made["id"]))[:2] == (404, "unknown_schedule")

    run(go())


def test_the_schedules_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.call("create_topic", name="other")
            ids = []
            for _ in range(5):
                ids.append((await rig.call("create_schedule", **SCHEDULE))["id"])
                rig.clock.now += 1
            other = (await rig.call("create_schedule", **SCHEDULE | {"topic": "other"}))["id"]

            async def pages(**fields: Any) -> list[list[str]]:
                found: list[list[str]] = []
                following: dict[str, str] = {}
                while True:
                    page = await rig.call("list_schedules", **fields, **following)
                    found.append([schedule["id"] for schedule in page["schedules"]])
                    if "next" not in page:
                        return found
                    following = {"next": page["next"]}

            assert await pages(limit=4) == [ids[:4], [ids[4], other]]
            assert await pages(limit=6) == [[*ids, other]]
            assert await pages(limit=2, topic="orders") == [ids[:2], ids[2:4], ids[4:]]
            assert await pages(topic="nope") == [[]]
            size = len(msgspec.json.encode(await rig.call("describe_schedule", schedule=ids[0])))
            monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 2 * size)
            assert await pages() == [ids[:2], ids[2:4], [ids[4], other]]
            monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 1)
            assert len(await pages()) == 6, "at least one each"

    run(go())


def test_the_list_goes_on_where_it_was_whatever_is_deleted_meanwhile(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            ids = []
            for number in range(6):
                ids.append((await rig.call("create_schedule", **SCHEDULE))["id"])
                rig.clock.now += number // 3  # the first four in the same millisecond
            ids[:4] = sorted(ids[:4])
            page = await rig.call("list_schedules", limit=2)
            assert [schedule["id"] for schedule in page["schedules"]] == ids[:2]
            await rig.call("delete_schedule", schedule=ids[2])
            following = await rig.call("list_schedules", limit=2, next=page["next"])
            assert [schedule["id"] for schedule in following["schedules"]] == ids[3:5]
            for schedule in (ids[5], ids[0]):
                await rig.call("delete_schedule", schedule=schedule)
            assert (await rig.call("list_schedules", next=following["next"])) == {"schedules": []}
            assert (await rig.refused("list_schedules", next=ids[3]))[:2] == (400, "invalid_request")

    run(go())


@pytest.mark.parametrize(
    ("fields", "status", "code", "said"),
    [
        ({"topic": "nope"}, 404, "unknown_topic", "there is no topic 'nope'"),
        ({"message": {"value": "x", "partition": 9}}, 404, "unknown_partition", "orders has no partition 9"),
        ({"message": {"value": "x", "encoding": "base64"}}, 400, "invalid_request", "the value is not base64"),
        ({"message": {"value": "x", "key": "\ud800"}}, 400, "invalid_request", "half of a surrogate pair"),
        ({"message": {"value": "x" * 2_000_000}}, 400, "too_large", "its topic allows 1048576"),
        ({"message": {"value": "x" * 70_000}}, 400, "too_large", "a schedule has at most 65536 bytes as JSON"),
        ({"message": {"value": 5}}, 400, "invalid_request", "it is text: send JSON as a string"),
        ({"message": {"value": "x", "delay": "1s"}}, 400, "invalid_request", "there is no field 'delay'"),
        ({"message": {"value": "x", "ttl": "0s"}}, 400, "invalid_request", "ttl is '0s'; write from 1ms"),
        ({"message": "x"}, 400, "invalid_request", 'write {"value": "text"}, and key, headers, priority'),
        ({"every": "10ms"}, 400, "invalid_request", "every is 10 ms; it must be from 1 s to 366 days"),
        ({"every": "often"}, 400, "invalid_request", "write a number and a unit"),
        ({"cron": "@daily"}, 400, "invalid_request", "leave one of them out"),
        ({"cron": "61 * * * *", "every": None}, 400, "invalid_request", "cron, minute: '61' is out of range"),
        ({"cron": 5, "every": None}, 400, "invalid_request", "like '30 3 * * MON-FRI', or @daily"),
        ({"cron": "0 0 30 2 *", "every": None}, 400, "invalid_request", "no day ever matches"),
        (
            {"cron": "@daily", "time_zone": "Mars", "every": None},
            400,
            "invalid_request",
            "there is no time zone 'Mars'",
        ),
        ({"time_zone": "UTC", "every": None}, 400, "invalid_request", "time_zone goes with cron"),
        ({"every": None}, 400, "invalid_request", "a schedule needs cron"),
        ({"missed": "some"}, 400, "invalid_request", "it is skip, once or all"),
        ({"paused": "yes"}, 400, "invalid_request", "it is true or false"),
        ({"colour": "red"}, 400, "invalid_request", "there is no field 'colour'"),
    ],
)
def test_a_schedule_that_cannot_be_right_is_refused(
    tmp_path: Path, fields: dict[str, Any], status: int, code: str, said: str
) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            wanted = {name: value for name, value in {**SCHEDULE, **fields}.items() if value is not None}
            found = await rig.refused("create_schedule", **wanted)
            assert found[0] == (413 if code == "too_large" else status)
            assert found[1] == code
            assert said in found[2]
            assert await rig.call("list_schedules") == {"schedules": []}

    run(go())


# --- dead letters


def test_a_dead_letter_is_shown_with_its_story(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path, 2) as rig:
            assert await rig.call("list_dead_letters", topic="orders") == {"messages": []}
            await rig.kill(
                {"value": "v", "key": "k", "partition": 1, "headers": {"h": "1"}, "priority": "low", "event_time": 5},
                {"value": "/w==", "partition": 1, "encoding": "base64"},
                reason="cannot be parsed",
            )
            expected = {
                "topic": "orders",
                "partition": 1,
                "offset": 0,
                "message_id": "orders.dlq:1:0",
                "origin": {
                    "topic": "orders",
                    "partition": 1,
                    "offset": 0,
                    "message_id": "orders:1:0",
                    "topic_id": (await rig.call("describe_topic", topic="orders"))["topic_id"],
                },
                "group": "billing",
                "reason": "rejected",
                "detail": "cannot be parsed",
                "deliveries": 1,
                "published_at": show_time(T0),
                "died_at": show_time(T0),
                "key": "k",
                "value": "v",
                "headers": {"h": "1"},
                "priority": "low",
                "event_time": "1970-01-01T00:00:00.005Z",
            }
            for name in ("orders", "orders.dlq"):
                first, second = (await rig.call("list_dead_letters", topic=name))["messages"]
                assert first == expected
                assert (second["value"], second["encoding"]) == ("/w==", "base64")
            assert (await rig.refused("list_dead_letters", topic="nope"))[:2] == (404, "unknown_topic")

    run(go())


def test_a_page_of_dead_letters_is_cut_where_it_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with rigged(tmp_path, 2) as rig:
            long = {"h": "x" * 1000}
            await rig.kill(*({"value": str(n), "partition": n // 3, "headers": long} for n in range(6)), reason="why")

            async def pages() -> list[list[str]]:
                found: list[list[str]] = []
                following: dict[str, str] = {}
                while True:
                    page = await rig.call("list_dead_letters", topic="orders", **following)
                    found.append([letter["value"] for letter in page["messages"]])
                    if "next" not in page:
                        return found
                    following = {"next": page["next"]}

            assert await pages() == [["0", "1", "2", "3", "4", "5"]]
            letter = (await rig.call("list_dead_letters", topic="orders", limit=1))["messages"][0]
            size = len(msgspec.json.encode(letter))
            monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 4 * size)
            assert await pages() == [["0", "1", "2", "3"], ["4", "5"]], "all that a letter has counts"
            monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 4 * size - 1)
            assert await pages() == [["0", "1", "2"], ["3", "4", "5"]]
            monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 1)
            assert await pages() == [["0"], ["1"], ["2"], ["3"], ["4"], ["5"]], "at least one each"
            monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 100 * size)
            monkeypatch.setattr(limits, "MAX_READ_HEADERS", 4)
            assert await pages() == [["0", "1", "2", "3"], ["4", "5"]], "headers are counted, too"
            monkeypatch.setattr(limits, "MAX_READ_HEADERS", 0)
            assert await pages() == [["0"], ["1"], ["2"], ["3"], ["4"], ["5"]], "at least one each"

    run(go())


def test_lists_of_dead_letters_and_of_schedules_are_made_in_turns_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with rigged(tmp_path, 1) as rig:
            count = 20
            await rig.kill(*({"value": str(n)} for n in range(count)), reason="why")
            for _ in range(count):
                await rig.call("create_schedule", **SCHEDULE)
            taken: list[int] = []
            take = rig.served.service.turns.take

            async def counted(steps: Any) -> None:
                work = list(steps)
                taken.append(len(work))
                await take(work)

            monkeypatch.setattr(rig.served.service.turns, "take", counted)
            assert len((await rig.call("list_dead_letters", topic="orders"))["messages"]) == count
            assert len((await rig.call("list_schedules"))["schedules"]) == count
            assert taken == [count, count], "a step for each"

    run(go())


def test_dead_letters_come_in_pages_and_by_filter(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path, 2) as rig:
            await rig.kill(
                *({"value": f"m{number}", "key": f"k{number % 2}", "partition": number % 2} for number in range(6))
            )
            page = await rig.call("list_dead_letters", topic="orders", limit=4)
            assert [letter["value"] for letter in page["messages"]] == ["m0", "m2", "m4", "m1"]
            assert page["next"] == "1-1"
            page = await rig.call("list_dead_letters", topic="orders", next=page["next"])
            assert [letter["value"] for letter in page["messages"]] == ["m3", "m5"]
            assert "next" not in page

            async def found(**wanted: Any) -> list[str]:
                page = await rig.call("list_dead_letters", topic="orders", filter=json.dumps(wanted))
                return [letter["value"] for letter in page["messages"]]

            assert await found(key="k1") == ["m1", "m3", "m5"]
            assert await found(offsets={"0": [2, 0], "1": [1]}) == ["m0", "m4", "m3"]
            assert await found(reason="rejected", group="billing", from_time=str(T0)) == await found()
            assert await found(to_time=show_time(T0)) == await found(group="other") == []
            assert await found(from_time=T0, to_time=T0 + 1) == await found()
            assert await found(to_time=T0) == await found(from_time=T0 + 1) == []
            redrive = await rig.call("start_redrive", topic="orders", filter={"from_time": T0}, dry_run=True)
            assert redrive["matched"] == 6

    run(go())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope", "the filter is not valid JSON"),
        ("[]", "is a list, not an object"),
        ('{"colour": 1}', "there is no field 'colour'"),
        ('{"reason": "acked"}', "it is rejected, nacked, lapsed or expired"),
        ('{"from_time": "then"}', "write RFC 3339 with a zone"),
        ('{"to_time": -1}', "or Unix milliseconds"),
        ('{"offsets": {"x": [1]}}', 'write {"0": [5, 8]}'),
        ('{"header": {"a": 1}}', 'write {"name": "value"}'),
        (json.dumps({"offsets": {"0": list(range(1001))}}), "names more than 1000 offsets"),
        (json.dumps({"header": {str(number): "x" for number in range(17)}}), "names more than 16 headers"),
    ],
)
def test_a_filter_that_cannot_be_right_is_refused(tmp_path: Path, text: str, said: str) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            assert (
                "did you mean group?"
                in (await rig.refused("list_dead_letters", topic="orders", filter='{"groups":1}'))[2]
            )
            found = await rig.refused("list_dead_letters", topic="orders", filter=text)
            assert found[:2] == (400, "invalid_request")
            assert said in found[2]
            if text.startswith("{"):
                found = await rig.refused("start_redrive", topic="orders", filter=json.loads(text))
                assert said in found[2]

    run(go())


# --- redrives


def test_a_redrive_is_shown_from_its_start_to_its_end(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            assert await rig.call("start_redrive", topic="orders") == {"id": None, "matched": 0}
            await rig.kill({"value": "a", "key": "x"}, {"value": "b", "key": "y"}, {"value": "c", "key": "x"})
            wanted = {"key": "x", "from_time": show_time(T0), "header": {}, "offsets": {"0": [2, 1, 0]}}
            asked = await rig.call("start_redrive", topic="orders", filter=wanted, dry_run=True)
            assert asked == {"id": None, "matched": 2}
            started = await rig.call("start_redrive", topic="orders.dlq", filter=wanted, rate=1000)
            assert started["matched"] == 2
            found = await rig.ended(started["id"])
            assert found == {
                "id": started["id"],
                "topic": "orders",
                "target": "orders",
                "filter": {"key": "x", "from_time": show_time(T0), "offsets": {"0": [0, 1, 2]}},
                "rate": 1000.0,
                "state": "done",
                "matched": 2,
                "redriven": 2,
                "skipped": 0,
                "started": show_time(T0),
                "finished": show_time(T0),
            }
            assert await rig.values() == ["a", "b", "c", "a", "c"]
            left = (await rig.call("list_dead_letters", topic="orders"))["messages"]
            assert [letter["value"] for letter in left] == ["b"]

    run(go())


def test_a_redrive_to_another_topic_is_cancelled(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.call("create_topic", name="other", num_partitions=1)
            await rig.kill(*({"value": str(number)} for number in range(5)))
            started = await rig.call("start_redrive", topic="orders", target="other", rate=0.001)
            while not (found := await rig.call("describe_redrive", redrive=started["id"]))["redriven"]:
                await asyncio.sleep(0.001)
            assert (found["state"], found["redriven"], found["target"], found["rate"]) == ("running", 1, "other", 0.001)
            assert "finished" not in found
            again = await rig.refused("start_redrive", topic="orders")
            assert again[:2] == (409, "conflict")
            cancelled = await rig.call("cancel_redrive", redrive=started["id"])
            assert (cancelled["state"], cancelled["redriven"]) == ("cancelled", 1)
            assert await rig.call("cancel_redrive", redrive=started["id"]) == cancelled

    run(go())


@pytest.mark.parametrize(
    ("operation", "fields", "status"),
    [
        ("start_redrive", {"topic": "nope"}, 404),
        ("start_redrive", {"topic": "orders", "target": "nope"}, 404),
        ("start_redrive", {"topic": "orders", "target": "orders.dlq"}, 400),
        ("start_redrive", {"topic": "orders", "target": "a b"}, 400),
        ("start_redrive", {"topic": "orders", "rate": 0}, 400),
        ("start_redrive", {"topic": "orders", "rate": -1}, 400),
        ("start_redrive", {"topic": "orders", "rate": 1e9}, 400),
        ("start_redrive", {"topic": "orders", "filter": []}, 400),
        ("start_redrive", {"topic": "orders", "dry_run": "perhaps"}, 400),
        ("describe_redrive", {"redrive": "nobody"}, 404),
        ("cancel_redrive", {"redrive": "0" * 16}, 404),
        ("list_dead_letters", {"topic": "orders", "limit": 0}, 400),
        ("list_dead_letters", {"topic": "orders", "next": "there"}, 400),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, operation: str, fields: dict[str, Any], status: int) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            await rig.kill({"value": "a"})
            assert (await rig.refused(operation, **fields))[0] == status

    run(go())


def test_a_broker_that_stops_starts_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            rig.broker.drain()
            assert (await rig.refused("create_schedule", **SCHEDULE))[:2] == (503, "draining")

    run(go())


def test_text_that_is_none_is_refused_in_a_filter(tmp_path: Path) -> None:
    async def go() -> None:
        async with rigged(tmp_path) as rig:
            with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
                await rig.call("start_redrive", topic="orders", filter={"key": "\ud800"})

    run(go())
