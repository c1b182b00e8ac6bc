"""What the codec does per second on one core, 1 KB records."""

from bench.blocks import blocks, records
from bench.report import Figure
from bench.timing import best
from goqueue import codec


def measure(short: bool) -> list[Figure]:
    rounds = 5 if short else 20
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

    return [
        Figure("codec encode", 1000 / best(lambda: codec.encode(made), rounds), "msg/s", note=note),
        Figure("codec stamp (check, stamp, check sum)", total / best(stamp, rounds), "msg/s", note=note),
        Figure("codec scan", total / best(scan, rounds), "msg/s", note=note),
        Figure("codec decode", total / best(decode, rounds), "msg/s", note=note),
    ]
