"""`goqueue-cli reader`: list, describe, set, delete named readers.

Where a reader begins is written as the id of the first message it wants: `orders:0:41`.
"""

from typing import Annotated, Any

import typer

from goqueue.cli.output import note, print_table, say
from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import add, group
from goqueue.cli.remote.names import Limit, NewReader, Next, Reader
from goqueue.cli.remote.showing import ago, count, hint, print_fields, show, text, when
from goqueue.model.errors import InvalidRequest

app = group("reader", "Where jobs that read without a group began: look at it, set it, forget it.")


def list_readers(limit: Limit = 100, next: Next = None) -> None:
    """List the named readers."""

    def table(reply: dict[str, Any]) -> None:
        rows = [
            (
                text(one["name"]),
                ", ".join(map(text, one["offsets"])) or "-",
                count(sum(map(len, one["offsets"].values()))),
                ago(one["changed_at"]),
            )
            for one in reply["readers"]
        ]
        if not rows:
            note("there are no readers" if next is None else "there are no more")
            return
        print_table(("reader", "topics", "partitions", "changed"), rows, numbers=("partitions",), optional=("changed",))
        if "next" in reply:
            say((f"more with --next {reply['next']}", "dim"))

    show(ask("list_readers", limit=limit, next=next), table)


def describe(name: Reader) -> None:
    """Where a named reader began, in each partition."""
    show(ask("get_reader", name=name), _print_reader)


def _print_reader(one: dict[str, Any]) -> None:
    print_fields(
        [
            ("reader", (text(one["name"]), "bold")),
            ("created", when(one["created_at"])),
            ("changed", when(one["changed_at"])),
        ]
    )
    rows = [
        (text(topic), number, count(offset))
        for topic, numbers in one["offsets"].items()
        for number, offset in numbers.items()
    ]
    if rows:
        print_table(("topic", "partition", "begins at"), rows, numbers=("partition", "begins at"))
    else:
        note("it has no offsets: its topics were deleted")


def put(
    name: NewReader,
    places: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC:PARTITION:OFFSET", help="Where it begins, like orders:0:41.", show_default=False),
    ],
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Add partitions it does not have; those it has stay as they are.")
    ] = False,
) -> None:
    """Set where a reader begins, all of it anew. A job that runs does not notice until it starts again."""
    show(ask("put_reader", name=name, offsets=_offsets(places), if_absent=if_absent), _print_reader)
    hint(f"goqueue-cli reader describe {name}")


def _offsets(places: list[str]) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for place in places:
        topic, *numbers = place.split(":")
        if not topic or len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
            raise InvalidRequest(f"{place!r} is no place: write TOPIC:PARTITION:OFFSET, like orders:0:41")
        partition, offset = str(int(numbers[0])), int(numbers[1])
        if offsets.setdefault(topic, {}).setdefault(partition, offset) != offset:
            raise InvalidRequest(f"{place!r}: another offset of that partition was named before; name each once")
    return offsets


def delete(name: Reader) -> None:
    """Forget a reader: the job that has its name begins anew when it starts again without a state of its own."""
    show(ask("delete_reader", name=name), lambda reply: say(f"deleted {reply['name']}"))


add(app, list=list_readers, describe=describe, set=put, delete=delete)
