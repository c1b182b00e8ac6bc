"""The pipelines there are. To add one: a module with a `PIPELINE`, and a line here."""

from typing import Final

from goqueue.model.errors import NotFound
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


def find_pipeline(name: str) -> Pipeline:
    found = PIPELINES.get(name)
    if found is None:
        raise NotFound(f"there is no pipeline {name!r}; there are {', '.join(PIPELINES)}")
    return found
