"""`goqueue-cli dlq`: list dead letters, redrive them, watch and stop a redrive."""

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from goqueue.cli.failures import FAILED
from goqueue.cli.output import complain, note, print_table, say, show_count
from goqueue.cli.remote.broker import Broker, ask, run
from goqueue.cli.remote.chosen import add, group, with_options
from goqueue.cli.remote.message_options import header_pairs
from goqueue.cli.remote.names import Limit, Next, OfGroup, Redrive, Topic, option
from goqueue.cli.remote.showing import ABSENT, ago, count, hint, print_fields, show, state, text, when
from goqueue.cli.remote.typed import check_number, typed_time
from goqueue.model.errors import InvalidRequest

app = group("dlq", "Look at dead letters and publish them again.")

_LOOK_AGAIN_S: Final = 0.2
_SHOWN_LETTERS: Final = 10
FILTERS: Final[dict[str, Any]] = {
    "reason": Annotated[
        Literal["rejected", "nacked", "lapsed", "expired"] | None,
        typer.Option("--reason", help="Only those that died of this."),
    ],
    "group": OfGroup,
    "key": Annotated[str | None, option("--key -k", "KEY", "Only those with this key.")],
    "from_time": Annotated[str | None, option("--from-time", "TIME", "Only those that died then or later, like -1h.")],
    "to_time": Annotated[str | None, option("--to-time", "TIME", "Only those that died before.")],
    "header": Annotated[
        list[str] | None, option("--header -H", "NAME=VALUE", "Only those with this header; may be given again.")
    ],
    "letter": Annotated[
        list[str] | None,
        option("--letter", "PARTITION:OFFSET", "Only this one, as dlq list has it below letter; may be given again."),
    ],
    "deleted": Annotated[
        bool, typer.Option("--deleted", help="Those of deleted topics that had the name before, and no others.")
    ],
}


def _filter(given: dict[str, Any]) -> dict[str, Any]:
    """What the API calls a filter, of the options above."""
    offsets: dict[str, list[int]] = {}
    for one in given["letter"] or []:
        partition, colon, offset = one.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise InvalidRequest(f"--letter is {one!r}; write PARTITION:OFFSET, like 0:41")
        offsets.setdefault(partition, []).append(int(offset))
    fields: dict[str, Any] = {name: given[name] for name in ("reason", "group", "key")}
    fields["from_time"] = typed_time("--from-time", given["from_time"])
    fields["to_time"] = typed_time("--to-time", given["to_time"])
    fields["header"] = dict(header_pairs(given["header"])) or None
    fields["offsets"] = offsets or None
    fields["deleted"] = given["deleted"] or None
    return {name: value for name, value in fields.items() if value is not None}


def list_letters(topic: Topic, limit: Limit = 50, next: Next = None, **filters: Any) -> None:
    """List the dead letters of a topic and why they died."""
    wanted = _filter(filters)
    reply = ask(
        "list_dead_letters", topic=topic, limit=limit, next=next,
        filter=msgspec.json.encode(wanted).decode() if wanted else None,
    )  # fmt: skip

    def table(found: dict[str, Any]) -> None:
        rows = [
            (
                f"{one['partition']}:{one['offset']}",
                text(one["origin"]["message_id"]),
                ago(one["died_at"]),
                text(one["group"]),
                _why(one),
                count(one["deliveries"]),
                text(one["key"]),
                text(one["value"])[:60],
            )
            for one in found["messages"]
        ]
        if not rows:
            note(_nothing(topic, wanted))
        else:
            columns = ("letter", "message", "died", "group", "why", "tries", "key", "value")
            print_table(columns, rows, numbers=("tries",), optional=("key", "group"))
        if "next" in found:
            say((f"more with --next {found['next']}", "dim"))

    show(reply, table)
    if reply["messages"]:
        hint(f"goqueue-cli dlq redrive {topic} --dry-run")


def _nothing(topic: str, wanted: dict[str, Any]) -> str:
    """That no letter was found. Who named some may have taken the numbers of messages."""
    said = f"there are no dead letters of {topic}" + (" like that" if wanted else "")
    if "offsets" in wanted:
        said += f"; --letter takes what goqueue-cli dlq list {topic} has below letter, which is not the message's id"
    return said


def _why(letter: dict[str, Any]) -> str:
    return f"{letter['reason']}: {text(letter['detail'])}" if letter["detail"] else str(letter["reason"])


def redrive(
    topic: Topic,
    rate: Annotated[float | None, option("--rate", "NUMBER", "At most so many messages a second.")] = None,
    target: Annotated[
        str | None, option("--target", "TOPIC", "Into this topic; without it where they came from.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many it would be, and do nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Stay until it is done, and show how far it is.")] = False,
    **filters: Any,
) -> None:
    """Publish the dead letters of a topic again. It goes on in the broker, also when this command ends."""
    check_number("--rate", rate, least=0)
    wanted = _filter(filters)
    started = ask("start_redrive", topic=topic, filter=wanted or None, rate=rate, target=target, dry_run=dry_run)
    if wait and started["id"] is not None:
        done = run(lambda broker: _watch(broker, started["id"], started["matched"]))
        show(done, _print_redrive)
        if done["state"] != "done":
            complain(f"the redrive is {done['state']}" + (f": {done['error']}" if "error" in done else ""))
            raise typer.Exit(FAILED)
        return

    def table(reply: dict[str, Any]) -> None:
        matched = show_count(reply["matched"], "dead letter")
        if not reply["matched"]:
            note(_nothing(topic, wanted))
        elif dry_run:
            say(f"{matched} would be published again")
        else:
            say(f"publishing {matched} again: {reply['id']}")
            hint(f"goqueue-cli dlq status {reply['id']}")

    show(started, table)


async def _watch(broker: Broker, redrive: str, matched: int) -> dict[str, Any]:
    """Look again and again until it has ended, with a bar where somebody is looking."""
    from goqueue.cli.progress import Counter

    done = 0
    with Counter("redriving", matched) as counter:
        while True:
            reply = await broker.call("describe_redrive", redrive=redrive)
            counter.advance(reply["redriven"] + reply["skipped"] - done)
            done = reply["redriven"] + reply["skipped"]
            if reply["state"] != "running":
                return reply
            await asyncio.sleep(_LOOK_AGAIN_S)


def status(redrive: Redrive) -> None:
    """How far a redrive is."""
    show(ask("describe_redrive", redrive=redrive), _print_redrive)


def cancel(redrive: Redrive) -> None:
    """Stop a redrive. What it has published stays published."""
    show(ask("cancel_redrive", redrive=redrive), _print_redrive)


def _print_redrive(one: dict[str, Any]) -> None:
    done = f"{count(one['redriven'])} of {count(one['matched'])}"
    print_fields(
        [
            ("redrive", (one["id"], "bold")),
            ("state", state(one["state"])),
            ("published", f"{done}, {count(one['skipped'])} skipped" if one["skipped"] else done),
            ("from", text(f"{one['topic']}")),
            ("into", text(one["target"])),
            ("rate", f"{one['rate']:g} a second" if one["rate"] else "as fast as it goes"),
            ("started", when(one["started"])),
            ("finished", when(one.get("finished"))),
            *([("error", (text(one["error"]), "bold red"))] if "error" in one else []),
            ("filter", _filter_words(one["filter"])),
        ]
    )


def _filter_words(found: dict[str, Any]) -> str:
    """A filter in the words of its options."""
    shown = []
    for name, value in found.items():
        if name == "offsets":
            letters = [f"{partition}:{offset}" for partition, offsets in value.items() for offset in offsets]
            more = len(letters) - _SHOWN_LETTERS
            words = " ".join(letters[:_SHOWN_LETTERS]) + (f" and {count(more)} more" if more > 0 else "")
            shown.append(f"{'letters' if len(letters) > 1 else 'letter'} {words}")
        elif name == "deleted":
            shown.append("of deleted topics")
        elif name == "header":
            shown += [f"header {text(header)}={text(content)}" for header, content in value.items()]
        else:
            shown.append(f"{name} {text(value)}")
    return ", ".join(shown) or ABSENT


add(app, list=with_options(list_letters, FILTERS), redrive=with_options(redrive, FILTERS), status=status, cancel=cancel)
