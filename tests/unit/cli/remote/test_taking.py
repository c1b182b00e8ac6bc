"""Taking messages of a group, and giving back what nobody saw."""

import asyncio
from typing import Any

import pytest

from goqueue.cli.output import OutputFailed
from goqueue.cli.remote.broker import Broker
from goqueue.cli.remote.taking import Outcome, Terms, take
from goqueue.model.errors import StaleHandle, UnknownMember

MESSAGES = [{"receipt_handle": handle} for handle in ("a", "b")]
TERMS = Terms(join={}, settle="ack", settle_fields={}, most=None, wait_s=0.001, follow=False)


class FakeBroker(Broker):
    """Gives two messages with its first answer to a poll; `silent` polls are never answered."""

    def __init__(self, silent: int = 0) -> None:
        self.patient = True
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.polls = 0
        self._silent = silent

    async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
        self.asked.append((operation, fields))
        if operation == "poll":
            self.polls += 1
            if self.polls <= self._silent:
                await asyncio.Event().wait()
            return {"poll": self.polls, "messages": MESSAGES if self.polls == self._silent + 1 else []}
        return {"member_id": "m", "results": [{}, {}]}

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


def test_what_was_printed_is_settled() -> None:
    broker, outcome = FakeBroker(), Outcome()
    shown: list[dict[str, Any]] = []
    asyncio.run(take(broker, "g", "t", TERMS, shown.extend, outcome))
    assert shown == MESSAGES
    assert ("ack", {"receipt_handles": ["a", "b"]}) in broker.asked
    assert "release" not in broker.names
    assert broker.names[-1] == "leave_group"
    assert outcome.taken == 2


@pytest.mark.parametrize(("settle", "ends"), [("ack", ["release", "leave_group"]), (None, ["leave_group"])])
def test_what_could_not_be_printed_is_given_back_unless_its_handles_were_wanted(
    settle: str | None, ends: list[str]
) -> None:
    def show(_: list[dict[str, Any]]) -> None:
        raise OutputFailed(BrokenPipeError())

    broker, outcome = FakeBroker(), Outcome()
    with pytest.raises(OutputFailed):
        asyncio.run(take(broker, "g", "t", TERMS._replace(settle=settle), show, outcome))
    assert broker.names == ["join_group", "poll", *ends]
    assert outcome.taken == 0


def test_what_a_poll_brings_after_ctrl_c_is_given_back() -> None:
    broker = FakeBroker(silent=1)

    async def interrupt() -> None:
        taking = asyncio.create_task(take(broker, "g", "t", TERMS._replace(follow=True), print, Outcome()))
        while not broker.polls:
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking

    asyncio.run(interrupt())
    assert broker.names == ["join_group", "poll", "poll", "release", "leave_group"]
    assert broker.asked[2][1]["received"] == 0
    assert broker.asked[3][1] == {"receipt_handles": ["a", "b"]}


def test_who_follows_joins_again_in_its_own_place_when_it_was_forgotten() -> None:
    class Forgetful(FakeBroker):
        async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
            if self.names == ["join_group"]:
                self.asked.append((operation, fields))
                raise UnknownMember("it was silent for too long")
            return await super().call(operation, **fields)

    outcome = Outcome()
    with pytest.raises(UnknownMember):
        asyncio.run(take(Forgetful(), "g", "t", TERMS, print, outcome))
    broker = Forgetful()
    asyncio.run(take(broker, "g", "t", TERMS._replace(follow=True, most=2), lambda _: None, outcome))
    assert broker.names == ["join_group", "poll", "join_group", "poll", "ack", "leave_group"]
    assert broker.asked[0] == broker.asked[2]
    assert broker.asked[0][1]["instance_id"].startswith("goqueue-cli-")
    assert outcome.taken == 2


@pytest.mark.parametrize(("lost", "refused"), [(0, 2), (1, 1)])
def test_what_is_stale_when_it_is_asked_again_counts_as_done(lost: int, refused: int) -> None:
    class Refusing(FakeBroker):
        async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
            reply = await super().call(operation, **fields)
            if operation == "ack":
                self.lost_answers += lost
                reply["results"] = [{"error": "x", "code": StaleHandle.code}, {"error": "y", "code": "disk_full"}]
            return reply

    outcome = Outcome()
    asyncio.run(take(Refusing(), "g", "t", TERMS, lambda _: None, outcome))
    assert outcome.refused == refused


def test_ctrl_c_does_not_wait_for_a_broker_that_is_away() -> None:
    class Away(FakeBroker):
        async def call(self, operation: str, **fields: Any) -> dict[str, Any]:
            await super().call(operation, **fields)
            self.is_away = True
            await asyncio.Event().wait()
            raise AssertionError

    async def interrupt() -> None:
        broker = Away()
        taking = asyncio.create_task(take(broker, "g", "t", TERMS._replace(follow=True), print, Outcome()))
        while not broker.is_away:
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert broker.names == ["join_group"]
        assert not broker.patient

    asyncio.run(interrupt())
