"""Bodies as JSON: their values are counted before anything is made of them, and long lists are read entry by entry."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue.api.bodies import Bodies
from goqueue.api.later import Later
from goqueue.api.operations import BY_NAME, OPERATIONS
from goqueue.model import limits
from goqueue.model.errors import InvalidRequest, TooLarge
from goqueue.wire import shapes
from tests.support.loop import run
from tests.unit.api.services import Served, served

BATCH = Bodies(BY_NAME["publish_batch"], what="the body")


def batch(*messages: str) -> bytes:
    return b'{"messages":[%s]}' % ",".join(messages).encode()


def decoded(body: bytes) -> Any:
    return BATCH.decode(padded(body))[0]


def padded(body: bytes) -> bytes:
    """So long that its values are counted."""
    return body + b" " * (limits.SMALL_JSON_BYTES + 1)


async def read(rig: Served, body: bytes, name: str = "publish_batch") -> tuple[Any, int]:
    counted = 0

    def count(weight: int) -> None:
        nonlocal counted
        counted += weight

    request, _ = await Bodies(BY_NAME[name], what="the body").read(rig.service, body, count)
    return request, counted


def test_a_large_body_counts_for_its_values_beside_its_bytes(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            body = batch('{"value":"a","headers":{"b":"c","d":"e"}}', '{"value":"f"}')
            assert (await read(rig, body))[1] == 0
            values = 1 + 1 + (1 + 1 + 1 + 2) + (1 + 1)
            assert (await read(rig, padded(body)))[1] == values * limits.VALUE_BYTES

    run(go())


def test_thirty_megabytes_of_tiny_things_are_refused_before_anything_is_made_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(Bodies, "decode", decode)
    tiny = [b"{}", b"[]", b'""', b"0", b'{"headers":[["",""],["",""]]}']

    async def go() -> None:
        async with served(tmp_path) as rig:
            for each in tiny:
                body = b'{"messages":[%s]}' % b",".join([each] * (limits.MAX_BODY_BYTES // (len(each) + 1) - 10))
                with pytest.raises(TooLarge, match="at most 500000 values"):
                    await read(rig, body)
            for name in ("publish", "transaction_publish"):
                with pytest.raises(TooLarge, match="at most 4000 values"):
                    await read(rig, b'{"headers":{%s}}' % b",".join([b'"a":""'] * 100_000), name)
            for operation in OPERATIONS:
                if operation.has_body and operation.request_bytes == limits.MAX_SMALL_BODY_BYTES:
                    with pytest.raises(TooLarge):
                        await read(rig, b'{"a":[%s]}' % b",".join([b"[]"] * 340_000), operation.name)
            assert rig.broker.requests.held == 0

    run(go())


def test_what_texts_say_are_no_values(tmp_path: Path) -> None:
    async def go() -> None:
        async with served(tmp_path) as rig:
            value = '[,{\\"' * 1_000_000
            (message,) = (await read(rig, b'{"messages":[{"value":"%s"}]}' % value.encode()))[0].messages
            assert message.value == '[,{"' * 1_000_000

    run(go())


def test_messages_are_read_when_somebody_comes_to_them() -> None:
    request = decoded(batch('{"value":"a"}', '{"value":5}', '{"value":"c","key":"k"}'))
    assert isinstance(request.messages, Later)
    assert len(request.messages) == 3
    assert request.messages[0] == shapes.Message(value="a")
    assert request.messages[2:] == [shapes.Message(value="c", key="k")]
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.value is a whole number"):
        list(request.messages)


@pytest.mark.parametrize(
    ("message", "words", "field"),
    [
        ('{"value":5}', "messages[1].value is a whole number, not text or null; it is text", "messages.value"),
        ('{"valu":"x"}', "there is no field 'valu' in messages[1]", "messages.valu"),
        ('"x"', "messages[1] is text, not an object", "messages"),
        ('{"value":"x","headers":{"a":1}}', "a value of messages[1].headers is a whole number", "messages.headers"),
        ('{"value":"x","priority":"urgent"}', "messages[1].priority cannot be 'urgent'", "messages.priority"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said_as_if_all_had_been_read_at_once(
    message: str, words: str, field: str
) -> None:
    request = decoded(batch('{"value":"a"}', message))
    with pytest.raises(InvalidRequest) as refused:
        list(request.messages)
    assert str(refused.value).startswith(words)
    assert refused.value.field == field
    whole = msgspec.json.Decoder(shapes.PublishBatch)
    with pytest.raises(msgspec.ValidationError):
        whole.decode(batch('{"value":"a"}', message))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "messages is missing"),
        (b'{"messages":[]}', "messages has fewer than 1 entries"),
        (b'{"messages":{}}', "messages is an object, not a list"),
        (b'{"messages":[{"value":"a"}],"ack":"all"}', "there is no field 'ack' here; did you mean acks?"),
        (b'{"messages":[{"value":"a"}', "the body is not valid JSON"),
        (b'{"messages":[{"value":"\\ud800 and much more"}]}', "the body has text that is not valid Unicode"),
        (b'{"messages":[{"value":}]}', "the body is not valid JSON"),
        (b'{"messages":' + b"[" * 100_000, "the body is nested too deeply"),
        (batch(*['{"value":"a"}'] * (limits.MAX_MESSAGES_PER_REQUEST + 1)), "messages has more than 10000 entries"),
    ],
)
def test_what_is_wrong_with_the_list_is_said_at_once(body: bytes, words: str) -> None:
    for given in (body, body + b" " * limits.SMALL_JSON_BYTES):
        with pytest.raises(InvalidRequest) as refused:
            BATCH.decode(given)
        assert str(refused.value).startswith(words), str(refused.value)


def test_a_message_with_very_many_headers_is_refused_unread() -> None:
    headers = ",".join(f'"h{number}":"v"' for number in range(100_000))
    request = decoded(batch('{"value":"a"}', '{"value":"b","headers":{' + headers + "}}"))
    assert request.messages[0].value == "a"
    with pytest.raises(TooLarge, match="too many headers; it may have 1000"):
        request.messages[1]
