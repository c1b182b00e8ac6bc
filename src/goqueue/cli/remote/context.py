"""`goqueue-cli context`: list, use, set, delete, show. Nothing is asked of a broker."""

from typing import Annotated, Any

import msgspec
import typer

from goqueue.cli.output import note, print_table, say
from goqueue.cli.remote import context_file
from goqueue.cli.remote.chosen import DEFAULT_ADDRESS, add, chosen, find_address, group
from goqueue.cli.remote.context_file import Context as Saved
from goqueue.cli.remote.names import Context
from goqueue.cli.remote.showing import hint, print_fields, show, text
from goqueue.model.errors import InvalidRequest

app = group("context", "Names for brokers you use often.")


def list_contexts() -> None:
    """List the contexts; a star is at the one in use."""
    contexts = context_file.load()

    def table(_: dict[str, Any]) -> None:
        rows = [
            ("*" if name == contexts.current else "", text(name), text(one.address))
            for name, one in sorted(contexts.contexts.items())
        ]
        if rows:
            print_table(("", "context", "address"), rows)
            return
        note("there are no contexts")
        hint(f"goqueue-cli context set here --address {DEFAULT_ADDRESS}")

    show({"current": contexts.current, "contexts": msgspec.to_builtins(contexts.contexts)}, table)


def use(name: Context) -> None:
    """Use this context from now on, where no --address, --context or $GOQUEUE_ADDRESS says otherwise."""
    contexts = context_file.load()
    address = contexts.address_of(name)
    context_file.save(msgspec.structs.replace(contexts, current=name))
    show({"current": name, "address": address}, lambda _: say(f"using {text(name)}, at {text(address)}"))
    where, source = find_address()
    if source.startswith("$"):
        note(f"{source} is set, and wins: commands go to {where} while it is")


def set_context(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.", show_default=False)],
) -> None:
    """Make a context of the --address given, or change the one of that name. The first one is in use at once."""
    from goqueue.client.link import parse_endpoint

    address = chosen().address
    if address is None:
        raise InvalidRequest(f"say where the broker is: goqueue-cli context set {name} --address HOST:PORT")
    if not name or not name.isprintable() or name.strip() != name:
        raise InvalidRequest(f"{name!r} cannot name a context: use letters, digits and signs one can see")
    parse_endpoint(address, connect_timeout_s=1, call_timeout_s=1)
    contexts = context_file.load()
    saved = msgspec.structs.replace(
        contexts, current=contexts.current or name, contexts={**contexts.contexts, name: Saved(address)}
    )
    context_file.save(saved)
    in_use = saved.current == name
    show({"name": name, "address": address, "current": in_use}, lambda _: say(f"{text(name)} is {text(address)}"))
    if not in_use:
        hint(f"goqueue-cli context use {name}")


def delete(name: Context) -> None:
    """Forget a context."""
    contexts = context_file.load()
    contexts.find(name)
    rest = {other: one for other, one in contexts.contexts.items() if other != name}
    current = None if contexts.current == name else contexts.current
    context_file.save(msgspec.structs.replace(contexts, current=current, contexts=rest))
    show({"deleted": True, "name": name}, lambda _: say(f"forgot {text(name)}"))


def show_context() -> None:
    """Which broker a command here would talk to, and why."""
    address, source = find_address()
    reply = {"address": address, "source": source, "file": str(context_file.path())}
    show(
        reply,
        lambda _: print_fields([("address", (text(address), "bold")), ("said by", source), ("file", reply["file"])]),
    )


add(app, list=list_contexts, use=use, set=set_context, delete=delete, show=show_context)
