"""What the codec does per second on one core, 1 KB records."""

from typing import Final

from bench.blocks import blocks, records
from bench.report import Figure, Part, Run
from bench.timing import best
from goqueue import codec


def records_and_blocks(run: Run) -> list[Figure]:
    run.say("codec")
    rounds = 5 if run.short else 20
    made = records(1000)
    data, count = blocks(8)
    total = count * len(data)
    note = f"best of {rounds}, blocks of 256 KB"

    def stamp() -> None:
        for block in data:
            codec.stamp(block, offset=0, timestamp=1)

    def scan() -> None:
        for block in data:
            codec.scan(block)

    def decode() -> None:
        for block in data:
            codec.decode(block)

    surveying = best(lambda: [codec.survey(block) for block in data], rounds)
    return [
        Figure("codec encode", 1000 / best(lambda: codec.encode(made), rounds), "msg/s", note=note),
        Figure("codec stamp (check, stamp, check sum)", total / best(stamp, rounds), "msg/s", note=note),
        Figure("codec scan", total / best(scan, rounds), "msg/s", note=note),
        Figure("codec survey", total / surveying, "msg/s", note=note),
        Figure("codec decode", total / best(decode, rounds), "msg/s", note=note),
    ]


PARTS: Final[dict[str, Part]] = {"records": records_and_blocks}
