"""`python -m bench [--short] [ROOM...]`: measure, show beside the targets, write JSON.

Exits with 1 when a target is missed and with 2 when the codec is not compiled: figures of the Python
reference would say nothing.
"""

import argparse
import sys

from rich.console import Console

from bench import codec as codec_bench
from bench import report, storage
from goqueue import codec

ROOMS = {"codec": codec_bench.measure, "storage": storage.measure}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--short", action="store_true", help="about a minute, less exact")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"one or more of: {', '.join(ROOMS)}")
    arguments = parser.parse_args()
    unknown = [room for room in arguments.rooms if room not in ROOMS]
    if unknown:
        parser.error(f"no bench for {', '.join(unknown)}; there is {', '.join(ROOMS)}")
    if not codec.COMPILED:
        print("bench needs the compiled codec: install gcc and run make bench again", file=sys.stderr)
        return 2
    console = Console(width=max(Console().width, 150))
    found: dict[str, list[report.Figure]] = {}
    for room in arguments.rooms or ROOMS:
        found[room] = []
        with console.status(f"{room} ...") as status:
            for figure in ROOMS[room](arguments.short):
                found[room].append(figure)
                status.update(f"{room}: {figure.name} {figure.value:,.3g} {figure.unit}")
        report.show(console, room, found[room])
    command = "python -m bench " + " ".join(sys.argv[1:])
    console.print(f"written to {report.save(command.strip(), found)}")
    missed = [figure.name for figures in found.values() for figure in figures if figure.met is False]
    if missed:
        print(f"Missed: {'; '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
