"""Schedules and redrives over HTTP with a real broker: they run by themselves, and live on when the broker dies."""

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.broker import Answer, RunningBroker, refusal, running_broker
from tests.support.patience import wait_until

_numbers = count(1)

SHOWN = {
    "schedule": {
        "id", "topic", "message", "missed", "paused", "created", "next_run", "last_run", "runs", "missed_runs",
        "failures", "last_error",
    },
    "last_run": {"due", "partition", "offset", "message_id"},
    "letter": {
        "topic", "partition", "offset", "message_id", "origin", "group", "reason", "detail", "deliveries",
        "published_at", "died_at", "key", "value", "headers", "priority",
    },
    "origin": {"topic", "partition", "offset", "message_id", "topic_id"},
    "redrive": {
        "id", "topic", "target", "filter", "rate", "state", "matched", "redriven", "skipped", "started", "finished",
    },
}  # fmt: skip
"""What published clients expect to find."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("jobs")) as running:
        yield running


def good(answer: Answer, status: int = 200) -> Any:
    assert answer.status == status, answer
    return answer.body


def new_topic(broker: RunningBroker, partitions: int = 1) -> str:
    name = f"t{next(_numbers)}"
    good(broker.request("POST", "/topics", {"name": name, "num_partitions": partitions}), 201)
    return name


def new_schedule(broker: RunningBroker, topic: str, **fields: object) -> dict[str, Any]:
    asked = {"topic": topic, "message": {"value": "tick"}, "every": "1s", **fields}
    made: dict[str, Any] = good(broker.request("POST", "/schedules", asked), 201)
    return made


def look(broker: RunningBroker, schedule: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = good(broker.request("GET", f"/schedules/{schedule['id']}"))
    return found


def values(broker: RunningBroker, topic: str) -> list[str]:
    found = good(broker.request("GET", f"/topics/{topic}/messages?limit=1000"))
    return [message["value"] for message in found["messages"]]


def bury(broker: RunningBroker, topic: str, messages: list[dict[str, Any]], reason: str = "bad") -> None:
    """Publish messages; a consumer rejects them. They are dead letters when it returns."""
    good(broker.request("POST", f"/topics/{topic}/messages", {"messages": messages}))
    group = f"g{next(_numbers)}"
    member = good(broker.request("POST", f"/groups/{group}/join", {"client_id": "w", "topics": [topic]}))["member_id"]
    left = len(messages)
    while left:
        query = urlencode({"member_id": member, "timeout": "5s", "max_messages": 1000})
        polled = good(broker.request("GET", f"/groups/{group}/poll?{query}"))["messages"]
        handles = [message["receipt_handle"] for message in polled]
        good(broker.request("POST", "/messages/reject", {"receipt_handles": handles, "reason": reason}))
        left -= len(handles)
    good(broker.request("POST", f"/groups/{group}/leave", {"member_id": member}))
    wait_until(lambda: len(dead(broker, topic)) >= len(messages))


def dead(broker: RunningBroker, topic: str, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    following: dict[str, str] = {}
    while True:
        path = f"/topics/{topic}/dlq?{urlencode({**query, **following})}"
        page = good(wait_until(partial(answered, broker, path)))
        found += page["messages"]
        if "next" not in page:
            return found
        following = {"next": page["next"]}


def answered(broker: RunningBroker, path: str) -> Answer | None:
    """None while the dead-letter topic is being made."""
    answer = broker.request("GET", path)
    return None if answer.status == 503 else answer


def redrive_of(broker: RunningBroker, redrive: str) -> dict[str, Any]:
    found: dict[str, Any] = good(broker.request("GET", f"/dlq/redrives/{redrive}"))
    return found


# --- schedules


def test_a_schedule_runs_by_itself(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    made = new_schedule(broker, topic)
    assert made.keys() >= SHOWN["schedule"]
    assert made["every"] == "1s"
    found = wait_until(lambda: (seen := look(broker, made))["runs"] >= 2 and seen)
    assert found["last_run"].keys() == SHOWN["last_run"]
    assert found["last_run"]["message_id"] == f"{topic}:0:{found['last_run']['offset']}"
    assert len(values(broker, topic)) >= 2
    good(broker.request("DELETE", f"/schedules/{made['id']}"))
    refusal(broker.request("GET", f"/schedules/{made['id']}"), 404, "unknown_schedule")
    assert made["id"] not in [each["id"] for each in good(broker.request("GET", "/schedules"))["schedules"]]


def test_a_schedule_is_paused_changed_and_goes_on(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    made = new_schedule(broker, topic, missed="all")
    wait_until(lambda: look(broker, made)["runs"])
    paused = good(broker.request("PATCH", f"/schedules/{made['id']}", {"paused": True}))
    assert (paused["paused"], paused["next_run"]) == (True, None)
    before = wait_until(lambda: seen if (seen := look(broker, made)) == look(broker, made) else None)["runs"]
    time.sleep(1.5)
    assert look(broker, made)["runs"] == before
    changed = good(broker.request("PATCH", f"/schedules/{made['id']}", {"paused": False, "message": {"value": "tock"}}))
    assert changed["next_run"] is not None
    wait_until(lambda: "tock" in values(broker, topic))
    assert look(broker, made)["missed_runs"] == 0
    good(broker.request("PATCH", f"/schedules/{made['id']}", {"cron": "0 0 1 1 *", "time_zone": "Europe/Berlin"}))
    assert look(broker, made)["next_run"].endswith("-12-31T23:00:00.000Z")


def test_a_topic_takes_its_schedules_along(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    made = new_schedule(broker, topic)
    good(broker.request("DELETE", f"/topics/{topic}"))
    refusal(broker.request("GET", f"/schedules/{made['id']}"), 404, "unknown_schedule")
    good(broker.request("POST", "/topics", {"name": topic}), 201)
    time.sleep(1.2)
    assert values(broker, topic) == []


def test_what_cannot_be_is_refused(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    for wrong, status, code in (
        ({"every": "1ms"}, 400, "invalid_request"),
        ({"cron": "@daily"}, 400, "invalid_request"),
        ({"message": {"value": "x" * 70_000}}, 413, "too_large"),
        ({"message": {"value": "x", "partition": 7}}, 404, "unknown_partition"),
        ({"topic": "nope"}, 404, "unknown_topic"),
        ({"when": "now"}, 400, "invalid_request"),
    ):
        asked = {"topic": topic, "message": {"value": "tick"}, "every": "1s", **wrong}
        refusal(broker.request("POST", "/schedules", asked), status, code)


def test_killed_again_and_again_every_run_is_published_once(tmp_path: Path) -> None:
    """Every due time since it was made has one message: all runs that were missed are made up for."""
    with running_broker(tmp_path) as broker:
        topic = new_topic(broker, partitions=2)
        made = [
            new_schedule(broker, topic, missed="all", message={"value": name, "partition": None}) for name in ("a", "b")
        ]
        for pause_s in (1.3, 0.4, 2.1, 0.1):
            time.sleep(pause_s)
            broker.kill()
            broker.restart()
        for each in made:
            wait_until(partial(has_run, broker, each, 5))
            good(broker.request("PATCH", f"/schedules/{each['id']}", {"paused": True}))
        time.sleep(0.3)
        found = [look(broker, each) for each in made]
        published = Counter(values(broker, topic))
        assert published == {"a": found[0]["runs"], "b": found[1]["runs"]}
        for each in found:
            assert (each["failures"], each["missed_runs"]) == (0, 0)
            due_s = _seconds(each["last_run"]["due"]) - _seconds(each["created"])
            assert round(due_s) == each["runs"], "one for each second"


def test_runs_that_are_missed_while_the_broker_is_away_are_left_out(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        topic = new_topic(broker)
        made = new_schedule(broker, topic, missed="once")
        broker.stop()
        time.sleep(3.2)
        broker.start()
        found = wait_until(lambda: (seen := look(broker, made))["runs"] and seen)
        assert found["missed_runs"] >= 2
        assert len(values(broker, topic)) <= found["runs"] + 1


def has_run(broker: RunningBroker, schedule: dict[str, Any], times: int) -> bool:
    return bool(look(broker, schedule)["runs"] >= times)


def _seconds(text: str) -> float:
    hours, minutes, seconds = text.rstrip("Z").partition("T")[2].split(":")
    return (int(hours) * 60 + int(minutes)) * 60 + float(seconds)


# --- dead letters


def test_dead_letters_are_listed_and_redriven(broker: RunningBroker) -> None:
    topic = new_topic(broker, partitions=2)
    bury(broker, topic, [{"value": f"m{number}", "key": f"k{number}"} for number in range(10)], reason="no such item")
    found = dead(broker, topic, limit=3)
    assert sorted(letter["value"] for letter in found) == sorted(f"m{number}" for number in range(10))
    for letter in found:
        assert letter.keys() == SHOWN["letter"]
        assert letter["origin"].keys() == SHOWN["origin"]
        assert (letter["reason"], letter["detail"], letter["deliveries"]) == ("rejected", "no such item", 1)
    assert [letter["value"] for letter in dead(broker, topic, filter='{"key": "k7"}')] == ["m7"]
    asked = good(broker.request("POST", f"/topics/{topic}/dlq/redrive", {"dry_run": True}))
    assert asked == {"id": None, "matched": 10}
    started = good(broker.request("POST", f"/topics/{topic}/dlq/redrive"))
    assert started["matched"] == 10
    ended = wait_until(lambda: (seen := redrive_of(broker, started["id"]))["state"] != "running" and seen)
    assert ended.keys() == SHOWN["redrive"]
    assert (ended["state"], ended["redriven"], ended["skipped"]) == ("done", 10, 0)
    assert Counter(values(broker, topic)) == {f"m{number}": 2 for number in range(10)}
    for number in range(2):
        read = good(broker.request("GET", f"/topics/{topic}/partitions/{number}/messages"))["messages"]
        half = len(read) // 2
        assert [message["value"] for message in read[:half]] == [message["value"] for message in read[half:]]
    assert dead(broker, topic) == []
    assert good(broker.request("POST", f"/topics/{topic}/dlq/redrive")) == {"id": None, "matched": 0}


def test_a_redrive_keeps_its_rate_and_can_be_stopped(broker: RunningBroker) -> None:
    topic, other = new_topic(broker), new_topic(broker)
    bury(broker, topic, [{"value": f"m{number}"} for number in range(30)])
    path = f"/topics/{topic}/dlq/redrive"
    started = good(broker.request("POST", path, {"rate": 10, "target": other, "filter": {"reason": "rejected"}}))
    begun = time.monotonic()
    refusal(broker.request("POST", path), 409, "conflict")
    wait_until(lambda: redrive_of(broker, started["id"])["redriven"] >= 8)
    assert time.monotonic() - begun > 0.6
    stopped = good(broker.request("DELETE", f"/dlq/redrives/{started['id']}"))
    assert stopped["state"] == "cancelled"
    assert 8 <= stopped["redriven"] < 30
    assert values(broker, other) == [f"m{number}" for number in range(stopped["redriven"])]
    assert [letter["value"] for letter in dead(broker, topic)] == [f"m{n}" for n in range(stopped["redriven"], 30)]
    assert redrive_of(broker, started["id"]) == stopped


def test_a_redrive_of_a_deleted_topic_says_why_it_failed(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    bury(broker, topic, [{"value": "a"}, {"value": "b"}, {"value": "c"}])
    started = good(broker.request("POST", f"/topics/{topic}/dlq/redrive", {"rate": 2}))
    good(broker.request("DELETE", f"/topics/{topic}"))
    ended = wait_until(lambda: (seen := redrive_of(broker, started["id"]))["state"] != "running" and seen)
    assert (ended["state"], ended["error"]) == ("failed", f"the topic {topic} was deleted")


def test_what_cannot_be_asked_of_dead_letters_is_refused(broker: RunningBroker) -> None:
    topic = new_topic(broker)
    assert dead(broker, topic) == []
    refusal(broker.request("GET", "/topics/nope/dlq"), 404, "unknown_topic")
    refusal(broker.request("GET", f"/topics/{topic}/dlq?filter=nonsense"), 400, "invalid_request")
    refusal(broker.request("GET", f"/topics/{topic}/dlq?filter=%7B%22colour%22%3A1%7D"), 400, "invalid_request")
    refusal(broker.request("POST", f"/topics/{topic}/dlq/redrive", {"target": "nope"}), 404, "unknown_topic")
    refusal(broker.request("GET", "/dlq/redrives/nobody"), 404, "unknown_redrive")
    refusal(broker.request("DELETE", "/dlq/redrives/nobody"), 404, "unknown_redrive")


def test_killed_again_and_again_a_redrive_publishes_every_letter_once(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        topic = new_topic(broker, partitions=2)
        bury(broker, topic, [{"value": f"m{number}", "partition": number % 2} for number in range(1000)])
        started = good(broker.request("POST", f"/topics/{topic}/dlq/redrive", {"rate": 500}))
        assert started["matched"] == 1000
        lives = 1
        while redrive_of(broker, started["id"])["state"] == "running":
            time.sleep(0.02 + 0.13 * (lives % 3))
            broker.kill()
            broker.restart()
            lives += 1
        assert lives > 3
        ended = redrive_of(broker, started["id"])
        assert (ended["state"], ended["redriven"], ended["skipped"]) == ("done", 1000, 0)
        for number in range(2):
            read, offset = [], 0
            while True:
                page = good(
                    broker.request("GET", f"/topics/{topic}/partitions/{number}/messages?offset={offset}&limit=1000")
                )
                if not page["messages"]:
                    break
                read += [message["value"] for message in page["messages"]]
                offset = page["next_offset"]
            expected = [f"m{place}" for place in range(number, 1000, 2)]
            assert read == expected * 2
        assert dead(broker, topic) == []
