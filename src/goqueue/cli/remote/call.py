"""`goqueue-cli call`: any operation of the API, with its fields as they are over HTTP. The answer is the API's."""

import sys
from typing import Annotated, Any, Final

import msgspec
import typer

from goqueue.cli.output import say
from goqueue.cli.remote.broker import Broker, run
from goqueue.cli.remote.chosen import OutputFormat, add, choose, chosen, single
from goqueue.cli.remote.names import option
from goqueue.cli.remote.showing import print_data
from goqueue.config.nearness import alike
from goqueue.model.errors import InvalidRequest
from goqueue.wire.codes import CODES

app = single()

OPERATIONS: Final = sorted(name for name in CODES if not name.endswith("_block"))
"""Those that carry JSON."""
_NAMES: Final = frozenset(("topic", "group", "schedule", "redrive", "name"))
"""Always text, whatever it looks like."""
_WRITE_ONE: Final = 'write one like \'{"name": "orders"}\''


def _complete(incomplete: str) -> list[str]:
    return [name for name in OPERATIONS if name.startswith(incomplete)]


def call(
    operation: Annotated[
        str | None,
        typer.Argument(
            metavar="OPERATION", help="Its name; without one the names are listed.", autocompletion=_complete
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE", help="A field. JSON is taken as such, anything else is text; '\"5\"' is text, too."
        ),
    ] = None,
    body: Annotated[
        str | None, option("--json", "OBJECT", "Fields as one JSON object; - reads it from standard input.")
    ] = None,
) -> None:
    """Call any operation of the API. Fields of the path and of the body stand side by side."""
    if operation is None:
        for name in OPERATIONS:
            say(name)
        return
    if operation not in OPERATIONS:
        near = alike(operation, OPERATIONS)
        instead = f"did you mean {near}?" if near else "goqueue-cli call lists them"
        raise InvalidRequest(f"there is no operation {operation!r}; {instead}")
    given = {**_read(body), **dict(_split(field) for field in fields or [])}
    if chosen().output is OutputFormat.TABLE:
        choose(chosen()._replace(output=OutputFormat.JSON))

    async def ask(broker: Broker) -> dict[str, Any]:
        return await broker.call_plainly(operation, given)

    print_data(run(ask))


def _read(body: str | None) -> dict[str, Any]:
    if body is None:
        return {}
    try:
        return msgspec.json.decode(sys.stdin.buffer.read() if body == "-" else body, type=dict[str, Any])
    except msgspec.ValidationError:  # it says of what kind it is in words of its own
        raise InvalidRequest(f"--json is no JSON object; {_WRITE_ONE}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--json is no JSON object ({error}); {_WRITE_ONE}") from None


def _split(field: str) -> tuple[str, Any]:
    name, equals, value = field.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"{field!r} is no field; write NAME=VALUE, like topic=orders")
    if name in _NAMES:
        return name, value
    try:
        return name, msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return name, value


add(app, call=call)
