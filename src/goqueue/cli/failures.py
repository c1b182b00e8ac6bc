"""What a command does when something goes wrong: one line on stderr that says what to do, and an exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | it did not work, or damage was found |
| 2 | what was typed cannot be right; nothing changed |
| 74 | the disk failed: an fsync or a read or write came back with an error |
| 130 | interrupted |
"""

import errno
import functools
import sys
from collections.abc import Callable
from typing import Final, ParamSpec

import typer

from goqueue.cli.output import complain
from goqueue.model.errors import GoQueueError, InvalidRequest, StorageFailed

FAILED: Final = 1
WRONG_USE: Final = 2
DISK_FAILED: Final = 74
INTERRUPTED: Final = 130

_Arguments = ParamSpec("_Arguments")


def exit_code(error: Exception) -> int:
    if isinstance(error, InvalidRequest):
        return WRONG_USE
    if isinstance(error, StorageFailed) or (isinstance(error, OSError) and error.errno == errno.EIO):
        return DISK_FAILED
    return FAILED


def plain_failures(command: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Turn the errors a user can do something about into a line; a bug still shows its traceback."""

    @functools.wraps(command)
    def run(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> None:
        try:
            command(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            raise  # whoever read our output has seen enough; typer ends quietly
        except (GoQueueError, OSError) as error:
            complain(str(error))
            raise typer.Exit(exit_code(error)) from error

    return run
