"""The bytes of the groups log."""

import msgspec
import pytest

from goqueue.groups import records
from goqueue.groups.records import (
    AssignorChanged,
    Event,
    Grant,
    GroupCreated,
    GroupDeleted,
    GroupRestored,
    MemberJoined,
    MemberLeft,
    MemberReplaced,
    NumbersGiven,
    Parts,
    PartsRestored,
    Reassigned,
    Renewed,
    TopicsEnded,
    TopicsStarted,
)
from goqueue.model.groups import Assignor, Mode
from goqueue.model.names import GroupNumber, TopicId

GROUP = GroupNumber(7)
ID = TopicId(0xFEDCBA9876543210)
OTHER = TopicId(11)

# What is in a log one day must be readable for good: a line may be added here, never changed.
GOLDEN: dict[bytes, Event] = {
    b'{"type":"group_created","group":7,"name":"billing","mode":"partition","assignor":"sticky"}': GroupCreated(
        group=GROUP, name="billing", mode=Mode.PARTITION, assignor=Assignor.STICKY
    ),
    b'{"type":"group_created","group":8,"name":"mails","mode":"shared","assignor":"sticky"}': GroupCreated(
        group=GroupNumber(8), name="mails", mode=Mode.SHARED, assignor=Assignor.STICKY
    ),
    b'{"type":"group_created","group":9,"name":"carts","mode":"key","assignor":"sticky"}': GroupCreated(
        group=GroupNumber(9), name="carts", mode=Mode.KEY, assignor=Assignor.STICKY
    ),
    b'{"type":"assignor_changed","group":7,"assignor":"round-robin"}': AssignorChanged(
        group=GROUP, assignor=Assignor.ROUND_ROBIN
    ),
    b'{"type":"group_deleted","group":7}': GroupDeleted(group=GROUP),
    b'{"type":"topics_started","group":7,"topic_ids":[18364758544493064720,11]}': TopicsStarted(
        group=GROUP, topic_ids=(ID, OTHER)
    ),
    b'{"type":"topics_ended","group":7,"topic_ids":[11]}': TopicsEnded(group=GROUP, topic_ids=(OTHER,)),
    b'{"type":"member_joined","group":7,"member_id":"web-1f","client_id":"web","topics":["orders","bills"],'
    b'"session_ms":30000,"rebalance_ms":30000}': MemberJoined(
        group=GROUP,
        member_id="web-1f",
        client_id="web",
        topics=("orders", "bills"),
        session_ms=30_000,
        rebalance_ms=30_000,
    ),
    b'{"type":"member_joined","group":7,"member_id":"web-2e","client_id":"web","topics":["orders"],'
    b'"session_ms":30000,"rebalance_ms":30000,"instance_id":"left","auto_commit_ms":5000,"replaced_id":"web-1f"}': (
        MemberJoined(
            group=GROUP,
            member_id="web-2e",
            client_id="web",
            topics=("orders",),
            session_ms=30_000,
            rebalance_ms=30_000,
            instance_id="left",
            auto_commit_ms=5000,
            replaced_id="web-1f",
        )
    ),
    b'{"type":"member_joined","group":7,"member_id":"web-3d","client_id":"web","topics":["orders"],'
    b'"session_ms":30000,"rebalance_ms":30000,"visibility_ms":45000,"max_unacked":50}': MemberJoined(
        group=GROUP,
        member_id="web-3d",
        client_id="web",
        topics=("orders",),
        session_ms=30_000,
        rebalance_ms=30_000,
        visibility_ms=45_000,
        max_unacked=50,
    ),
    b'{"type":"member_replaced","group":7,"member_id":"web-1f","new_id":"web-2e"}': MemberReplaced(
        group=GROUP, member_id="web-1f", new_id="web-2e"
    ),
    b'{"type":"member_left","group":7,"member_id":"web-2e","expired":true}': MemberLeft(
        group=GROUP, member_id="web-2e", expired=True
    ),
    b'{"type":"reassigned","group":7,"revoked":[[11,[2,3]]]}': Reassigned(group=GROUP, revoked=(Parts(OTHER, (2, 3)),)),
    b'{"type":"reassigned","group":7,"released":[[11,[2]]],"kept":[[11,[3]]],'
    b'"granted":[["web-2e",11,[2]],["web-2e",18364758544493064720,[0,1]]]}': Reassigned(
        group=GROUP,
        released=(Parts(OTHER, (2,)),),
        kept=(Parts(OTHER, (3,)),),
        granted=(Grant("web-2e", OTHER, (2,)), Grant("web-2e", ID, (0, 1))),
    ),
    b'{"type":"renewed","group":7,"parts":[[11,[2,3]]]}': Renewed(group=GROUP, parts=(Parts(OTHER, (2, 3)),)),
    b'{"type":"group_numbers_given","below":8}': NumbersGiven(below=8),
    b'{"type":"group_restored","group":7,"name":"billing","mode":"partition","assignor":"range","generation":12,'
    b'"started":[11]}': GroupRestored(
        group=GROUP,
        name="billing",
        mode=Mode.PARTITION,
        assignor=Assignor.RANGE,
        generation=12,
        started=(OTHER,),
    ),
    b'{"type":"partitions_restored","group":7,"topic_id":11,"owners":[0,0,1,null],"epochs":[3,3,12,0],'
    b'"revoking":[1]}': PartsRestored(
        group=GROUP, topic_id=OTHER, owners=(0, 0, 1, None), epochs=(3, 3, 12, 0), revoking=(1,)
    ),
}


@pytest.mark.parametrize(("encoded", "event"), GOLDEN.items(), ids=lambda part: type(part).__name__)
def test_the_bytes_are_the_golden_ones(encoded: bytes, event: Event) -> None:
    assert records.encode(event) == encoded
    assert records.decode(encoded) == event


def test_every_kind_of_record_has_golden_bytes() -> None:
    assert {type(event) for event in GOLDEN.values()} == set(Event.__args__)


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert records.decode(b'{"type":"group_deleted","group":7,"reason":"idle"}') == GroupDeleted(group=GROUP)
    found = records.decode(b'{"type":"reassigned","group":7,"revoked":[[11,[2],"soon"]]}')
    assert found == Reassigned(group=GROUP, revoked=(Parts(OTHER, (2,)),))


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"group_renamed","group":7}',
        b'{"type":"group_deleted"}',
        b'{"group":7}',
        b'{"type":"assignor_changed","group":7,"assignor":"fair"}',
    ],
)
def test_what_is_no_record_is_refused(strange: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        records.decode(strange)
