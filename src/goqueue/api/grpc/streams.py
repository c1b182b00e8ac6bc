"""The two streams of the door, and what they are made of.

A stream does nothing that operations do not do: it carries many requests of a few operations over one call, with less
ceremony for each. Which ones is said here, so that a test can ask.
"""

from typing import Final

from goqueue.api.grpc.schema import Field, Label, Message, Rpc, derive

PUBLISH: Final = "PublishStream"
SUBSCRIBE: Final = "Subscribe"

COMPOSED_OF: Final[dict[str, tuple[str, ...]]] = {
    PUBLISH: ("publish_batch",),
    SUBSCRIBE: (
        "join_group", "poll", "heartbeat", "ack", "nack", "reject", "release", "extend_visibility", "commit",
        "leave_group",
    ),
}  # fmt: skip
"""The operations each stream is made of."""

_ONE, _OPTIONAL, _MANY, _MAP = Label

MESSAGES: Final = (
    Message(
        "Refusal",
        (
            Field("code", "string", _ONE, "As in the table of errors."),
            Field("error", "string", _ONE, "What was wrong, and what to do."),
            Field("retriable", "bool", _ONE, "Whether the same may succeed later."),
            Field("index", "int32", _OPTIONAL, "The message it is about, counted from 0; all of them if left out."),
            Field("details", "string", _MAP, "What a program needs to act on it."),
        ),
        "Why something on a stream was not done. The stream goes on.",
    ),
    Message(
        "PublishFrame",
        (
            Field("topic", "string"),
            Field("messages", "Message", _MANY, "Either these, or a block."),
            Field("block", "bytes", _OPTIONAL, "Records as they lie in the log, for one partition."),
            Field("partition", "int32", _OPTIONAL, "For messages that name none; a block needs it."),
            Field("acks", "string", _OPTIONAL, "none, leader or all; leader if left out."),
            Field("producer_id", "int64", _OPTIONAL, "With it, all messages are for one partition."),
            Field("epoch", "int32", _OPTIONAL),
            Field("sequence", "int64", _OPTIONAL, "That of the first message."),
        ),
        "A batch. Frames are published in their order, and answered in it.",
    ),
    Message(
        "PublishedRange",
        (
            Field("partition", "int32"),
            Field("first_offset", "int64"),
            Field("count", "int32"),
            Field("timestamp", "int64", _ONE, "Unix milliseconds."),
            Field("duplicate", "bool", _ONE, "These were published before; nothing was stored."),
        ),
        "Messages that follow each other in a partition.",
    ),
    Message(
        "PublishFrameReply",
        (
            Field("frame", "int64", _ONE, "Which frame of the stream, counted from 0."),
            Field("ranges", "PublishedRange", _MANY, "The messages of each partition, in their order."),
            Field(
                "partitions", "int32", _MANY,
                "Of each message, where it went, -1 if it was refused; left out if all went to one partition.",
            ),
            Field("durability", "string", _ONE, "none, written, replicated or durable."),
            Field("errors", "Refusal", _MANY, "Messages that were refused, or why the frame was."),
        ),
        "Where the messages of a frame are. With acks none there are no ranges.",
    ),
    Message(
        "Subscription",
        (
            Field("join", "JoinGroupRequest", _ONE, "Join a group; or go on as a member that did before:"),
            Field("group", "string", _OPTIONAL),
            Field("member_id", "string", _OPTIONAL),
            Field("received", "int64", _OPTIONAL, "The `poll` of the last batch that arrived; later ones come again."),
            Field("max_messages", "int32", _OPTIONAL, "Of one batch; 100 if left out."),
            Field("max_bytes", "int64", _OPTIONAL, "Of one batch."),
            Field("visibility", "string", _OPTIONAL, "How long messages are the member's alone."),
            Field("stay", "bool", _OPTIONAL, "Stay a member when the stream ends; else it leaves."),
        ),
        "Who consumes, and how.",
    ),
    Message(
        "SubscribeRequest",
        (
            Field("subscription", "Subscription", _ONE, "In the first request, and only there."),
            Field("credit", "int64", _OPTIONAL, "So many more messages may be sent."),
            Field("ack", "AckRequest"),
            Field("nack", "NackRequest"),
            Field("reject", "RejectRequest"),
            Field("release", "ReleaseRequest"),
            Field("extend_visibility", "ExtendVisibilityRequest"),
            Field("commit", "CommitRequest"),
        ),
        "Any of these, done in this order. Group and member need not be named again.",
    ),
    Message(
        "SubscribeReply",
        (
            Field("member", "MemberReply", _ONE, "First of all; without credit also when what it has changes."),
            Field("batch", "Polled", _ONE, "Messages, never more than there is credit for."),
            Field("request", "int64", _OPTIONAL, "Which request this answers, counted from 0."),
            Field("settled", "Settled", _ONE, "The answer to ack, nack, reject, release or extend_visibility."),
            Field("committed", "Committed", _ONE, "The answer to commit."),
            Field("refused", "Refusal", _ONE, "The answer to any of these, if it was refused."),
        ),
        "One of these.",
    ),
)  # fmt: skip

RPCS: Final = (
    Rpc(PUBLISH, "PublishFrame", "PublishFrameReply", "Publish batches, many under way at a time", streams=True),
    Rpc(SUBSCRIBE, "SubscribeRequest", "SubscribeReply", "Be a member of a group and get messages", streams=True),
)

SCHEMA: Final = derive(MESSAGES, RPCS)
"""Everything there is at the door."""
