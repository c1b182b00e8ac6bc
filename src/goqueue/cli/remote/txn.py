"""`goqueue-cli txn`: list, describe, abort, stats, token. Beginning and committing is for programs."""

from typing import Annotated, Any, Final

import typer

from goqueue.cli.output import Part, note, print_table, say
from goqueue.cli.remote.broker import ask
from goqueue.cli.remote.chosen import add, group
from goqueue.cli.remote.names import Limit, MaybeTransaction, OfTransactions, Transaction, TransactionName
from goqueue.cli.remote.showing import ABSENT, ago, count, hint, print_fields, seconds, show, state, text, when
from goqueue.model.errors import InvalidRequest
from goqueue.model.transactions import TransactionState

app = group("txn", "Look at transactions, and abort those that were left open.")

_WHY: Final = {
    "asked": "it was asked for",
    "timed_out": "it was open for too long",
    "reinitialised": "its transactional id was initialised again",
    "lost": "messages of it were lost when the broker's machine crashed",
    "replaced": "its work was committed before",
}


def list_transactions(
    name: OfTransactions = None,
    wanted: Annotated[TransactionState | None, typer.Option("--state", help="Only those in this state.")] = None,
    limit: Limit = 100,
) -> None:
    """List transactions: those that are open first, then those that ended last."""

    def table(reply: dict[str, Any]) -> None:
        rows = [
            (
                one["transaction_id"],
                state(one["state"]),
                text(one.get("transactional_id")),
                text(one.get("name")),
                str(one["producer_id"]),
                ago(one["began_at"]),
                _end(one),
            )
            for one in reply["transactions"]
        ]
        if not rows:
            note("there are no transactions" if name is wanted is None else "there are no such transactions")
            return
        columns = ("id", "state", "transactional id", "name", "producer", "began", "ends")
        print_table(columns, rows, numbers=("producer",), optional=("name", "producer"))
        if reply["total"] > len(rows):
            say((f"{count(reply['total'] - len(rows))} more; --limit, --name or --state shows others", "dim"))

    show(ask("list_transactions", name=name, state=wanted, limit=limit), table)


def _end(one: dict[str, Any]) -> str:
    """When it is aborted at the latest, or was decided about."""
    return ago(one.get("expires_at") or one.get("ended_at"))


def describe(transaction: Transaction) -> None:
    """Describe a transaction: whose it is, and what it has where while it is open."""
    show(ask("describe_transaction", transaction=transaction), _print_transaction)


def _print_transaction(one: dict[str, Any]) -> None:
    fields: list[tuple[str, Part]] = [
        ("transaction", (one["transaction_id"], "bold")),
        ("state", state(one["state"])),
        ("transactional id", text(one.get("transactional_id"))),
        ("name", text(one.get("name"))),
        ("producer", f"{one['producer_id']}, epoch {one['epoch']}"),
        ("began", when(one["began_at"])),
    ]
    if "expires_at" in one:
        fields.append(("is aborted", when(one["expires_at"])))
    if one.get("producer_silent"):
        fields.append(("its producer", ("was not heard of for a while", "yellow")))
    if "ended_at" in one:
        fields.append(("ended", when(one["ended_at"])))
    if "reason" in one:
        fields.append(("because", _WHY.get(one["reason"], text(one["reason"]))))
    print_fields(fields)
    rows = [
        (text(part["topic"]), str(part["partition"]), count(part["messages"]), count(part["acks"]))
        for part in one.get("partitions", ())
    ]
    if rows:
        say()
        print_table(("topic", "partition", "messages", "acks"), rows, numbers=("partition", "messages", "acks"))


def abort(
    transaction: MaybeTransaction = None,
    name: OfTransactions = None,
) -> None:
    """Abort a transaction, or all that are open under a name. Its messages are never delivered, its acks undone."""
    if (transaction is None) == (name is None):
        raise InvalidRequest("say which one, by the id that `txn list` shows, or --name for all of that name")

    def told(reply: dict[str, Any]) -> None:
        if reply["aborted"]:
            say(f"aborted {', '.join(reply['aborted'])}")
        else:
            note("nothing was open" if name is not None else f"{transaction} was aborted before")

    show(ask("abort_transaction", transaction_id=transaction, name=name), told)
    hint("goqueue-cli txn list --state aborted")


def stats() -> None:
    """How many transactions are open, and how those before ended. Counted since the broker started."""

    def table(reply: dict[str, Any]) -> None:
        why = ", ".join(f"{count(number)} {text(reason)}" for reason, number in reply["aborted"].items() if number)
        aborted = count(sum(reply["aborted"].values()))
        print_fields(
            [
                ("open", (count(reply["ongoing"]), "bold")),
                ("the oldest", seconds(reply["oldest_seconds"]) if reply["ongoing"] else ABSENT),
                ("ending", count(reply["ending"])),
                ("begun", count(reply["begun"])),
                ("committed", count(reply["committed"])),
                ("aborted", f"{aborted}: {why}" if why else aborted),
                ("transactional ids", count(reply["transactional_ids"])),
            ]
        )

    show(ask("transaction_stats"), table)


def token(name: TransactionName) -> None:
    """The last number that was committed under a name, for programs that commit many at once."""

    def told(reply: dict[str, Any]) -> None:
        if reply["number"] is None:
            note(f"nothing was committed under {name}")
        else:
            say(str(reply["number"]))

    show(ask("transaction_token", name=name), told)


add(app, list=list_transactions, describe=describe, abort=abort, stats=stats, token=token)
