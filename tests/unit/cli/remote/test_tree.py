"""The tree of commands: everything in it is explained, and it reaches every operation of the API."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from goqueue.api.operations import OPERATIONS
from goqueue.cli.remote import call, commands
from goqueue.cli.remote.commands import COMMANDS, app

SOURCE = Path(commands.__file__).parent
ONLY_BY_CALL = {
    "add_partition": "publishing in a transaction does it by itself",
    "begin_transaction": "transactions are for programs",
    "commit": "consume acks message by message",
    "commit_many": "transactions are for programs",
    "commit_transaction": "transactions are for programs",
    "heartbeat": "consume polls, which says as much",
    "metadata": "for clients: ids and counts that topic describe shows, too",
    "publish": "produce sends blocks",
    "publish_batch": "produce sends blocks",
    "read_topic": "consume reads each partition, to know where it is in all of them",
    "transaction_ack": "transactions are for programs",
    "transaction_publish": "transactions are for programs",
}

ASKING = {"ask", "call", "call_plainly", "_settle", "settle", "_forget"}


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command, the groups included."""
    yield path, command
    if hasattr(command, "list_commands"):
        context = command.make_context(" ".join(("goqueue-cli", *path)), [], resilient_parsing=True)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


TREE = dict(walk(typer.main.get_command(app)))
LEAVES = {path: command for path, command in TREE.items() if not hasattr(command, "list_commands")}
SHARED = {"--address", "--context", "--output", "--timeout"}


def test_every_group_of_the_table_has_the_help_of_its_module() -> None:
    for name, help in COMMANDS.items():
        if (name,) not in LEAVES:
            assert TREE[name,].help.startswith(help.rstrip(".")), name


@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_every_command_and_every_parameter_has_a_help_text(path: tuple[str, ...]) -> None:
    command = TREE[path]
    assert command.help
    assert command.help.rstrip()[-1] in ".?"
    for parameter in command.params:
        if "--help" not in parameter.opts:
            assert parameter.help, f"{' '.join(path)}: {parameter.name}"
            assert parameter.help.rstrip()[-1] in ".)", f"{' '.join(path)}: {parameter.help}"


@pytest.mark.parametrize("path", [path for path in LEAVES if path != ("completion",)], ids=" ".join)
def test_every_command_takes_the_options_of_all(path: tuple[str, ...]) -> None:
    options = {option for parameter in LEAVES[path].params for option in parameter.opts}
    assert options >= SHARED


def test_every_operation_can_be_called_by_its_name() -> None:
    assert {operation.name for operation in OPERATIONS} == set(call.OPERATIONS)


def asked_operations(source: str) -> Iterator[str]:
    """The first argument of everything that asks a broker; of a choice between two, both."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2] in ASKING:
            first = node.args[1] if ast.unparse(node.func) == "_forget" else node.args[0]
            for choice in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
                if isinstance(choice, ast.Constant):
                    yield str(choice.value)


def test_only_what_is_asked_of_a_broker_counts() -> None:
    assert list(asked_operations("say('poll'); broker.call('ack'); ask('a' if x else 'b'); ask(name)")) == [
        "ack", "a", "b",
    ]  # fmt: skip


def test_every_operation_has_a_command_of_its_own_but_for_a_few() -> None:
    asked = {name for path in SOURCE.glob("*.py") for name in asked_operations(path.read_text(encoding="utf-8"))}
    assert asked <= set(call.OPERATIONS)
    assert set(call.OPERATIONS) - asked == set(ONLY_BY_CALL)


def test_files_are_small() -> None:
    long = {path.name for path in SOURCE.glob("*.py") if len(path.read_text(encoding="utf-8").splitlines()) > 260}
    assert not long


def test_commands_are_named_in_lower_case_with_dashes() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for path in TREE for name in path)
