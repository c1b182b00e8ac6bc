"""Where a streaming query is, by the files of its checkpoint. The query itself is asked for nothing."""

import json
from pathlib import Path

from goqueue.spark.places import Position


def committed_position(checkpoint: Path) -> Position | None:
    """Behind its last batch that is done; None if there is none."""
    done = [int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")]
    return planned_position(checkpoint, max(done)) if done else None


def planned_position(checkpoint: Path, batch: int) -> Position:
    """Behind a batch, as it was written down before the batch began."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return Position.from_json(json.loads(lines[-1]))
