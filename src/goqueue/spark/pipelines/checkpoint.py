"""Where a streaming query is, by the files of its checkpoint. The query itself is asked for nothing."""

import json
from pathlib import Path

from goqueue.spark.places import Position


def committed_position(checkpoint: Path) -> Position | None:
    """Behind its last batch that is done; None if there is none."""
    done = [int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")]
    if not done:
        return None
    lines = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
    return Position.from_json(json.loads(lines[-1]))
