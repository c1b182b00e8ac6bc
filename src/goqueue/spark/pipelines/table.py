"""The pipelines there are. To add one: a module with a `PIPELINE`, and a line here."""

from typing import Final

from goqueue.spark.pipelines import archive, audit, deadletters, repartition, replay
from goqueue.spark.pipelines.frame import Pipeline

_ALL: Final[tuple[Pipeline, ...]] = (
    archive.PIPELINE,
    replay.PIPELINE,
    deadletters.PIPELINE,
    repartition.PIPELINE,
    audit.PIPELINE,
)
PIPELINES: Final = {each.name: each for each in _ALL}
