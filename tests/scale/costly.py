"""The costliest requests that are allowed, and some that are refused, at every door: others go on meanwhile.

Each is sent again and again for some seconds, by a client that waits for its answers. A probe in a process of its own
publishes to another topic and polls it: what it takes says how long the loop was kept from everybody else.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any, Final, NamedTuple

import grpc
import msgspec

from bench.callers import Refused, WireCaller
from bench.report import Figure
from bench.timing import quantile
from goqueue import codec
from goqueue.api.grpc.proto import PACKAGE, SERVICE
from goqueue.api.grpc.translating import pb
from goqueue.model import limits
from goqueue.model.limits import KIB, MIB
from goqueue.model.publishing import Acks
from goqueue.model.record import Record
from goqueue.wire import frames
from goqueue.wire.blocks import FetchRequest, PublishRequest
from goqueue.wire.codes import CODES, FETCH_BLOCK, PUBLISH_BLOCK
from goqueue.wire.frames import Bytes
from tests.scale.probe import Probe
from tests.scale.stage import staged
from tests.support.broker import RunningBroker

OTHERS_P99_MS: Final = 20.0
_TOPIC: Final = "costly"
_HEADERS: Final = "headers"
"""A topic whose messages have as many headers as they may."""
_SMALL: Final = "small"
_LARGE: Final = "large"
"""A topic whose messages may be as large as there are any."""
_NAMES: Final = f"/{PACKAGE}.{SERVICE}/"


class Plan(NamedTuple):
    each_s: float = 4.0
    mib: int = 31


class Outcome(NamedTuple):
    name: str
    sent: int
    answers: str
    """What the answers were: ok, or the codes of errors."""
    others_ms: list[float]


Send = Callable[[], str]
"""Sends one request, waits for its answer, and says what it was."""


def run(plan: Plan, chosen: str = "") -> Iterator[Outcome]:
    """Those whose names have `chosen` in them."""
    with staged("--grpc", "127.0.0.1:0") as broker, Probe(broker.wire, f"{broker.data_dir}.probe") as probe:
        _prepare(broker)
        for name, requests in _REQUESTS.items():
            if chosen in name:
                with closing(_Clients(broker, plan)) as clients:
                    yield _measure(name, requests(clients), plan, probe)


def _measure(name: str, send: Send, plan: Plan, probe: Probe) -> Outcome:
    answers: dict[str, int] = {}
    stop = threading.Event()

    def go() -> None:
        while True:
            answer = send()
            answers[answer] = answers.get(answer, 0) + 1
            if stop.is_set():
                return

    send()
    sender = threading.Thread(target=go)
    probe.begin()
    sender.start()
    time.sleep(plan.each_s)
    others = probe.end()
    stop.set()
    sender.join()
    return Outcome(name, sum(answers.values()), ", ".join(f"{count} {what}" for what, count in answers.items()), others)


def figures(outcome: Outcome) -> Iterator[Figure]:
    p99 = quantile(outcome.others_ms, 0.99)
    yield Figure(
        outcome.name, p99, "ms", OTHERS_P99_MS, at_most=True,
        note=f"others' p99 of {len(outcome.others_ms)}, worst {max(outcome.others_ms):.0f} ms; {outcome.answers}",
    )  # fmt: skip


# ---------------------------------------------------------------- topics


def _prepare(broker: RunningBroker) -> None:
    with closing(WireCaller(broker.wire)) as caller:
        for topic in (_TOPIC, _HEADERS, _SMALL):
            caller.ask("create_topic", name=topic, num_partitions=1, retention_bytes=256 * MIB)
        caller.ask("create_topic", name=_LARGE, num_partitions=1, retention_bytes=256 * MIB, max_message_bytes=15 * MIB)
        many = tuple([("h", b"")] * limits.MAX_HEADERS)
        for _ in range(2):
            _publish(caller, _HEADERS, codec.encode([Record(value=b"x", headers=many)] * 500))
        for _ in range(20):
            _publish(caller, _SMALL, codec.encode([Record(value=b"x" * 100)] * 10_000))


def _publish(caller: WireCaller, topic: str, block: bytes | bytearray) -> None:
    caller.request(PUBLISH_BLOCK, 0, [PublishRequest(_topic_id(caller, topic), 0, Acks.LEADER).pack(), block])
    caller.reply(memoryview(bytearray(MIB)))


def _topic_id(caller: WireCaller, topic: str) -> int:
    (found,) = caller.ask("metadata", topics=[topic])["topics"]
    return int(found["topic_id"], 16)


# ---------------------------------------------------------------- clients


class _Clients:
    """Of each door one."""

    def __init__(self, broker: RunningBroker, plan: Plan) -> None:
        self.bytes = plan.mib * MIB
        self._http = HTTPConnection(broker.http)
        self.wire = WireCaller(broker.wire)
        self._into = memoryview(bytearray(80 * MIB))
        self._channel = grpc.insecure_channel(
            broker.endpoints["grpc"],
            options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
        )

    def post(self, path: str, body: bytes) -> Send:
        return lambda: self._ask("POST", path, body)

    def get(self, path: str) -> Send:
        return lambda: self._ask("GET", path)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> str:
        self._http.request(method, path, body)
        answer = self._http.getresponse()
        found = answer.read()
        return "ok" if answer.status == 200 else str(msgspec.json.decode(found)["code"])

    def json(self, method: str, path: str, body: bytes | None = None) -> Any:
        self._http.request(method, path, body)
        return msgspec.json.decode(self._http.getresponse().read())

    def call(self, method: str, body: bytes) -> Send:
        ask: Any = self._channel.unary_unary(_NAMES + method)
        return lambda: _answered(lambda: ask(body))

    def frames(self, body: bytes) -> Send:
        ask: Any = self._channel.stream_stream(_NAMES + "PublishStream")

        def send() -> str:
            (answer,) = ask(iter((body,)))
            reply = pb.PublishFrameReply.FromString(answer)
            return reply.errors[0].code if reply.errors else "ok"

        return lambda: _answered(send)

    def frame(self, operation: int, *parts: Bytes) -> Send:
        def send() -> str:
            try:
                self.wire.request(operation, 1, parts)
                self.wire.reply(self._into)
            except Refused as error:
                return str(error)[:80]
            return "ok"

        return send

    def many(self, operation: int, count: int, *parts: Bytes) -> Send:
        """So many requests in one write, and then their answers."""

        def send() -> str:
            size = sum(map(len, parts))
            writer = threading.Thread(
                target=self.wire.send,
                args=([b"".join([frames.pack_header(operation, frames.OK, 1, size), *parts]) * count],),
            )
            writer.start()
            for _ in range(count):
                self.wire.reply(self._into)
            writer.join()
            return "ok"

        return send

    def head(self, topic: str) -> bytes:
        return PublishRequest(self.topic_id(topic), 0, Acks.LEADER).pack()

    def topic_id(self, topic: str) -> int:
        return _topic_id(self.wire, topic)

    def close(self) -> None:
        self._http.close()
        self.wire.close()
        self._channel.close()


def _answered(ask: Callable[[], Any]) -> str:
    try:
        found = ask()
    except grpc.RpcError as error:
        return str(error.code().name)
    return found if isinstance(found, str) else "ok"


# ---------------------------------------------------------------- requests


def _json(count: int, message: bytes) -> bytes:
    return b'{"messages":[' + b",".join([message] * count) + b"]}"


def _many_headers(count: int) -> bytes:
    return b",".join([b'"h%d":"v"' % number for number in range(count)])


def _batch(messages: int, value: bytes, headers: int = 0) -> bytes:
    return _message(pb.PublishBatchRequest, messages, value, headers)


def _frame(messages: int, value: bytes, headers: int = 0) -> bytes:
    return _message(pb.PublishFrame, messages, value, headers)


def _message(kind: Any, messages: int, value: bytes, headers: int) -> bytes:
    one = pb.Message(value=value, headers=[pb.Header(name=f"h{number}", value=b"v") for number in range(headers)])
    found: bytes = kind(topic=_TOPIC, messages=[one] * messages).SerializeToString()
    return found


def _empty(kind: Any, field: str, size: int) -> bytes:
    """As many empty messages as go into so many bytes."""
    number = kind.DESCRIPTOR.fields_by_name[field].number
    found: bytes = kind(topic=_TOPIC).SerializeToString() + bytes([number << 3 | 2, 0]) * (size // 2)
    return found


def _polls(clients: _Clients) -> Send:
    """Polls everything again and again."""
    join = msgspec.json.encode({"client_id": "c", "topics": [_SMALL], "max_unacked": 50_000})
    member = clients.json("POST", "/groups/costly/join", join)["member_id"]
    polls = 0

    def send() -> str:
        nonlocal polls
        polls += 1
        if polls % 4 == 0:
            clients.json("POST", "/groups/costly/offsets/reset", b'{"topic":"small","to":"earliest"}')
        return clients._ask("GET", f"/groups/costly/poll?member_id={member}&max_messages=10000&timeout=1s")

    return send


def _acks(clients: _Clients) -> Send:
    """Acks a whole poll in one request, again and again: most of them are stale from the second time on."""
    join = msgspec.json.encode({"client_id": "c", "topics": [_SMALL], "max_unacked": 50_000})
    member = clients.json("POST", "/groups/acks/join", join)["member_id"]
    handles: list[str] = []
    while len(handles) < limits.MAX_HANDLES:
        polled = clients.json("GET", f"/groups/acks/poll?member_id={member}&max_messages=10000&timeout=1s")
        handles += [message["receipt_handle"] for message in polled["messages"]]
    body = msgspec.json.encode({"receipt_handles": handles[: limits.MAX_HANDLES]})
    return clients.post("/messages/ack", body)


def _rest() -> str:
    time.sleep(0.1)
    return "nothing"


def _with_rests(send: Send) -> Send:
    """For what is stored as fast as it comes: else it is the disk that others wait for."""

    def rested() -> str:
        answer = send()
        time.sleep(0.1)
        return answer

    return rested


def _as_json(messages: int, headers: int) -> bytes:
    return _json(messages, b'{"value":"x","headers":{%s}}' % _many_headers(headers))


def _bad_at_the_end(messages: int, size: int) -> bytes:
    """Of base64, in which nothing but the last header is wrong; so many bytes each."""
    one = b'{"encoding":"base64","value":"%s","headers":{"bad":"?"}},'
    return _json(messages, (one % (b"eHh4" * ((size - len(one)) // 4))).rstrip(b","))


_BATCH: Final = f"/topics/{_TOPIC}/messages"
_REQUESTS: Final[dict[str, Callable[[_Clients], Send]]] = {
    "nothing else": lambda _: _rest,
    "http: 10,000 messages of 3 KB": lambda at: at.post(_BATCH, _json(10_000, b'{"value":"%s"}' % (b"x" * 3080))),
    "http: 10,000 messages with 20 headers": lambda at: at.post(_BATCH, _as_json(10_000, 20)),
    "http: 480 messages with 1,000 headers": lambda at: at.post(_BATCH, _as_json(480, 1000)),
    "http: messages with 7,000 headers": lambda at: at.post(_BATCH, _as_json(at.bytes // 90_000, 7000)),
    "http: empty messages": lambda at: at.post(_BATCH, _json(at.bytes // 3, b"{}")),
    "http: 10,000 messages without a value": lambda at: at.post(_BATCH, _json(10_000, b"{}")),
    "http: messages of base64 whose last header is bad": lambda at: at.post(
        _BATCH, _bad_at_the_end(10_000, at.bytes // 10_000)
    ),
    "http: one value of base64": lambda at: at.post(
        f"/topics/{_TOPIC}/publish", b'{"encoding":"base64","value":"%s"}' % (b"eHh4" * (250 * KIB))
    ),
    "http: a page of headers": lambda at: at.get(
        f"/topics/{_HEADERS}/partitions/0/messages?limit=1000&max_bytes={limits.MAX_JSON_READ_BYTES}"
    ),
    "http: a page of messages": lambda at: at.get(f"/topics/{_SMALL}/partitions/0/messages?limit=1000"),
    "http: polls of 10,000": _polls,
    "http: 10,000 acks": _acks,
    "grpc: 10,000 messages of 3 KB": lambda at: at.call("PublishBatch", _batch(10_000, b"x" * 3100)),
    "grpc: 10,000 messages with 15 headers": lambda at: at.call("PublishBatch", _batch(10_000, b"x", 15)),
    "grpc: 10,000 messages without a value": lambda at: at.call("PublishBatch", _batch(10_000, b"")),
    "grpc: a frame of 10,000 messages without a value": lambda at: at.frames(_frame(10_000, b"")),
    "grpc: empty messages": lambda at: at.call("PublishBatch", _empty(pb.PublishBatchRequest, "messages", at.bytes)),
    "grpc: empty headers": lambda at: at.call("Publish", _empty(pb.PublishRequest, "headers", at.bytes)),
    "grpc: a page of headers": lambda at: at.call(
        "ReadPartition",
        pb.ReadPartitionRequest(
            topic=_HEADERS, partition=0, limit=1000, max_bytes=limits.MAX_JSON_READ_BYTES
        ).SerializeToString(),
    ),
    "grpc: a frame of 10,000 messages of 3 KB": lambda at: at.frames(_frame(10_000, b"x" * 3100)),
    "grpc: a frame of 10,000 messages with 15 headers": lambda at: at.frames(_frame(10_000, b"x", 15)),
    "grpc: a frame of empty messages": lambda at: at.frames(_empty(pb.PublishFrame, "messages", at.bytes)),
    "wire: a block of 4 MiB, large messages": lambda at: _with_rests(at.frame(
        PUBLISH_BLOCK, at.head(_TOPIC), codec.encode([Record(value=b"x" * 1_000_000)] * 4)
    )),
    "wire: a block of 4 MiB, tiny messages": lambda at: _with_rests(at.frame(
        PUBLISH_BLOCK, at.head(_TOPIC), codec.encode([Record(value=b"x")] * (limits.APPENDED_AT_ONCE_BYTES // 36))
    )),
    "wire: a block of one message of 15 MiB": lambda at: _with_rests(at.frame(
        PUBLISH_BLOCK, at.head(_LARGE), codec.encode([Record(value=b"x" * 15 * MIB)])
    )),
    "wire: 10,000 blocks of one message": lambda at: at.many(
        PUBLISH_BLOCK, 10_000, at.head(_TOPIC), codec.encode([Record(value=b"x")])
    ),
    "wire: a block of 31 MB": lambda at: at.frame(
        PUBLISH_BLOCK, at.head(_TOPIC), codec.encode([Record(value=b"x")] * (at.bytes // 36))
    ),
    "wire: a fetch of as much as there may be": lambda at: at.frame(
        FETCH_BLOCK, FetchRequest(at.topic_id(_SMALL), 0, 0, limits.MAX_BLOCK_BYTES, limits.MAX_READ_COUNT, 0).pack()
    ),
    "wire: 10,000 messages with 20 headers, as JSON": lambda at: at.frame(
        CODES["publish_batch"], b'{"topic":"costly",' + _as_json(10_000, 20)[1:]
    ),
}  # fmt: skip
