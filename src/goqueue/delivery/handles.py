"""Receipt handles: what a consumer shows to settle one delivery of one message.

A handle is `topic:partition:offset:deliveries:nonce`. The nonce, in URL-safe base64, has the group's number, the
lease's, and a MAC over the topic's id and all of the handle: nobody can make one up, or turn one into another. A topic
created again under an old name has another id, and knows none of the old one's handles.

Handles are read in two steps, because the topic's id is known only once the topic was found by the name in it: `parse`
looks at the shape, `check` at the MAC. Whether the delivery is still the message's latest is no business of this
module: it knows no leases, no groups and no topics.
"""

import re
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

from goqueue.model import limits
from goqueue.model.errors import InvalidRequest
from goqueue.model.names import GroupNumber, TopicId

MIN_SECRET_BYTES: Final = 16

_KEY_BYTES: Final = 32
_MAC_BYTES: Final = 8
_NUMBERS: Final = struct.Struct(">QQ")
"""The nonce without its MAC: group, lease."""
_NONCE_CHARS: Final = (_NUMBERS.size + _MAC_BYTES) * 4 // 3
assert (_NUMBERS.size + _MAC_BYTES) % 3 == 0, "base64 would have bits to spare: two texts of one nonce"

_MAC_INPUT: Final = struct.Struct(">QQQ")
"""Topic id, group, lease; the text up to the nonce follows."""
_TOKEN_INPUT: Final = struct.Struct(">QQQQ")
"""Topic id, partition, group, lease."""

_NUMBER: Final = "(0|[1-9][0-9]{0,18})"
_SHAPE: Final = re.compile(
    rf"([A-Za-z0-9._-]{{1,{limits.MAX_NAME_PART}}}):{_NUMBER}:{_NUMBER}:{_NUMBER}:([A-Za-z0-9_-]{{{_NONCE_CHARS}}})"
)
assert _NONCE_CHARS == limits.HANDLE_NONCE_CHARS


class Handle(NamedTuple):
    """One delivery of one message to one group."""

    topic: str
    partition: int
    offset: int
    deliveries: int
    """How often the message was delivered, this time included."""
    group: GroupNumber
    lease: int


class HandleKey:
    """Issues handles and knows its own again. Keys of the same secret are alike."""

    __slots__ = ("_handle_mac", "_token_mac")

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret of a handle key must have at least {MIN_SECRET_BYTES} bytes")
        key = blake2b(secret, digest_size=_KEY_BYTES).digest()
        # Each is copied for every use, which costs much less than to begin with the key again.
        self._handle_mac: Final = blake2b(key=key, digest_size=_MAC_BYTES, person=b"goqueue handle")
        self._token_mac: Final = blake2b(key=key, digest_size=_MAC_BYTES, person=b"goqueue token")

    def issue(self, topic_id: TopicId, handle: Handle) -> str:
        """The handle as text."""
        topic, partition, offset, deliveries, group, lease = handle
        delivery = f"{topic}:{partition}:{offset}:{deliveries}:"
        mac = self._handle_mac.copy()
        mac.update(_MAC_INPUT.pack(topic_id, group, lease) + delivery.encode())
        return delivery + urlsafe_b64encode(_NUMBERS.pack(group, lease) + mac.digest()).decode()

    @staticmethod
    def parse(text: str) -> Handle:
        """What the text claims to be a handle of; InvalidRequest when no handle looks like that."""
        shape = _SHAPE.fullmatch(text) if len(text) <= limits.MAX_HANDLE_CHARS else None
        if shape is None:
            raise _not_a_handle(text)
        topic, partition, offset, deliveries, nonce = shape.groups()
        group, lease = _NUMBERS.unpack_from(urlsafe_b64decode(nonce))
        handle = Handle(topic, int(partition), int(offset), int(deliveries), GroupNumber(group), lease)
        if max(handle[1:]) >= limits.MAX_OFFSET:
            raise _not_a_handle(text)
        return handle

    def check(self, topic_id: TopicId, text: str, handle: Handle) -> bool:
        """Whether the text was issued with this key, for this topic and this handle."""
        return compare_digest(self.issue(topic_id, handle).encode(), text.encode("ascii", "replace"))

    def token(self, topic_id: TopicId, partition: int, group: GroupNumber, lease: int) -> int:
        """A number below 2**63 that only this key gives to this lease: it stands for the lease on the wire."""
        mac = self._token_mac.copy()
        mac.update(_TOKEN_INPUT.pack(topic_id, partition, group, lease))
        return int.from_bytes(mac.digest(), "big") >> 1


def _not_a_handle(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"{text[:80]!r} is not a receipt handle: one looks like topic:partition:offset:deliveries:nonce; "
        "give it back exactly as it came with the message"
    )
