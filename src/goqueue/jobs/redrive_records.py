"""What the jobs log says of redrives: one struct per thing that can happen, as JSON with a `type`.

To change the format: add optional fields, or a new struct; never change the meaning of one. That holds for what is in
them as well (`redrive`, `letters`). `docs/internals/jobs.md` lists them, and golden bytes hold them.
"""

import msgspec

from goqueue.jobs.redrive import Batch, Plan, Redrive, RedriveId
from goqueue.model.jobs import RedriveState


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all."""


class RedriveStarted(_Event, frozen=True, kw_only=True, tag="redrive_started"):
    plan: Plan


class BatchIntended(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="batch_intended"):
    """It will be published, each letter once. The one before it is done: published, and marked as redriven."""

    redrive_id: RedriveId
    batch: Batch
    next_offset: int
    """Where it looks on, in the same partition."""
    skipped: int = 0
    """Letters that matched and could not be redriven, since the batch before."""


class RedriveEnded(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="redrive_ended"):
    redrive_id: RedriveId
    state: RedriveState
    finished_ms: int
    redriven: int = 0
    """Letters of the last batch that are published."""
    skipped: int = 0
    """As in a batch."""
    error: str | None = None


class RedriveRestored(_Event, frozen=True, kw_only=True, tag="redrive_restored"):
    """In a snapshot."""

    redrive: Redrive


Event = RedriveStarted | BatchIntended | RedriveEnded | RedriveRestored

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
encode = msgspec.json.Encoder().encode
decode = _decoder.decode
