"""`python -m bench [--short] [ROOM[:PART]...]`: measure, show beside the targets, write JSON.

Exits with 1 when a target is missed or a part breaks (the others go on), and with 2 when the codec is not compiled:
figures of the Python reference would say nothing. Whatever ends it, it leaves no process and no
directory behind.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterable
from typing import Final

from rich.console import Console

from bench import broker, client, delivery, report, spark, storage, transactions
from bench import codec as codec_bench
from bench.callers import Refused
from bench.processes import Failed
from goqueue import codec

ROOMS: Final[dict[str, dict[str, report.Part]]] = {
    "codec": codec_bench.PARTS,
    "storage": storage.PARTS,
    "broker": broker.PARTS,
    "delivery": delivery.PARTS,
    "client": client.PARTS,
    "transactions": transactions.PARTS,
    "spark": spark.PARTS,
}

QUIET_LOAD: Final = 0.5


def choose(wanted: Iterable[str]) -> dict[str, list[str]]:
    """Rooms and their parts, each once and in the order they are in; all when nothing is named. ValueError: no such."""
    chosen = set()
    for name in wanted:
        room, _, part = name.partition(":")
        if room not in ROOMS or (part and part not in ROOMS[room]):
            there = ROOMS.get(room, ROOMS)
            raise ValueError(f"no bench for {name}; there is {', '.join(there)}")
        chosen |= {(room, part)} if part else {(room, each) for each in ROOMS[room]}
    everything = {
        room: [part for part in parts if not chosen or (room, part) in chosen] for room, parts in ROOMS.items()
    }
    return {room: parts for room, parts in everything.items() if parts}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--short", action="store_true", help="a few minutes for all, less exact")
    parts = "; ".join(f"{room}: {', '.join(parts)}" for room, parts in ROOMS.items())
    parser.add_argument("rooms", nargs="*", metavar="ROOM[:PART]", help=f"what to measure ({parts})")
    arguments = parser.parse_args()
    try:
        chosen = choose(arguments.rooms)
    except ValueError as error:
        parser.error(str(error))
    if not codec.COMPILED:
        print("bench needs the compiled codec: install gcc and run make bench again", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(f"the load average is {load:.1f}: others are at work here, and the figures will suffer", file=sys.stderr)
    console = Console(width=max(Console().width, 150))
    found: dict[str, list[report.Figure]] = {}
    broken: list[str] = []
    for room, names in chosen.items():
        found[room] = []
        with console.status(f"{room} ...") as status:

            def say(what: str, room: str = room) -> None:
                if console.is_terminal:
                    status.update(f"{room}: {what}")
                else:
                    print(f"{room}: {what}", file=sys.stderr, flush=True)

            for name in names:
                say(name)
                try:
                    for figure in ROOMS[room][name](report.Run(arguments.short, say)):
                        found[room].append(figure)
                        say(f"{figure.name} {report.amount(figure.value, figure.unit)}")
                except (Failed, Refused, OSError) as error:
                    broken.append(f"{room}:{name}")
                    print(f"{room}:{name} could not be measured: {error}", file=sys.stderr)
        report.show(console, room, found[room])
    command = "python -m bench " + " ".join(sys.argv[1:])
    console.print(f"written to {report.save(command.strip(), found, load=load)}")
    missed = [figure.name for figures in found.values() for figure in figures if figure.met is False]
    for what, names in (("Missed", missed), ("Not measured", broken)):
        if names:
            print(f"{what}: {'; '.join(names)}", file=sys.stderr)
    return int(bool(missed or broken))


def _leave(number: int, _: object) -> None:
    """As Ctrl-C does: everything on the way out is cleaned up."""
    sys.exit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
