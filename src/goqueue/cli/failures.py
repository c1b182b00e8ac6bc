"""What a command does when something goes wrong: one line on stderr that says what to do, and an exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | it did not work, only a part of it worked, or damage was found |
| 2 | what was typed cannot be right; nothing changed |
| 3 | it is done, and durable, but the answer could not be printed |
| 74 | the disk failed: an fsync or a read or write came back with an error |
| 128 + n | stopped by signal n: 130 is Ctrl-C, 141 a reader that had seen enough |
"""

import errno
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from goqueue.cli.output import OutputFailed, complain, finish_output
from goqueue.model.errors import GoQueueError, InvalidRequest, StorageFailed

FAILED: Final = 1
WRONG_USE: Final = 2
UNPRINTED: Final = 3
DISK_FAILED: Final = 74
BY_SIGNAL: Final = 128

_REWORDED: Final = (
    (r"Missing argument '(.*?)'\.?", r"\1 is missing"),
    (r"Missing option '(.*?)'\.?", r"\1 is missing"),
    (r"Missing command\.?", "which command?"),
    (r"No such option: (\S+)", r"there is no option \1"),
    (r"No such command (.*?)\.?", r"there is no command \1"),
    (r"Option '?(\S+?)'? requires an argument\.?", r"\1 needs a value"),
    (r"Got unexpected extra argument\S* \((.*)\)", r"what is \1 for? There is one thing too many"),
)
"""What the parser says, in the words of everything else here."""
_NEAR: Final = re.compile(r"(.*?)(?:\.? Did you mean (.*)\?| \(Possible options: (.*)\))")
"""What it says, and the names that may have been meant."""
_MISTYPED: Final = re.compile(r"Invalid value for ['\"]*([^'\"/:]+)['\"]*(?: / [^:]*)?: (.*)")
"""What it says of a value: of which option, by all its names, and what is wrong with it."""
_CHOICES: Final = re.compile(r"(?:Value error, )?('.*?') is not (one of .*)")
_KINDS: Final = (
    (re.compile(r"Input should be a valid integer|.* is not a valid int"), "a whole number"),
    (re.compile(r"Input should be a valid number|.* is not a valid float"), "a number"),
)
_SHOWN_LETTERS: Final = 60


def exit_code(error: Exception) -> int:
    if isinstance(error, InvalidRequest):
        return WRONG_USE
    if isinstance(error, StorageFailed) or (isinstance(error, OSError) and error.errno == errno.EIO):
        return DISK_FAILED
    return FAILED


def describe(error: Exception) -> str:
    """An error in a line: of one from the system what it was and where, without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return (isinstance(error, OSError) and error.strerror) or str(error)


class PlainCommand(TyperCommand):
    """A command whose usage names its arguments without decoration."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class PlainGroup(TyperGroup):
    """Turns the errors a user can do something about into a line; a bug still shows its traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        _prepare_streams()
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            finish_output()
        except OutputFailed as error:
            if error.reader_left:
                sys.exit(BY_SIGNAL + signal.SIGPIPE)
            complain(f"standard output could not be written: {error}")
            sys.exit(FAILED)
        except (GoQueueError, OSError) as error:
            complain(describe(error))
            sys.exit(exit_code(error))
        except Exception as error:
            usage = _usage(error)
            if usage is None:
                raise
            if usage.startswith("Usage:"):  # nothing was typed: this is the help page
                sys.stderr.write(usage)
            else:
                complain(usage)
            sys.exit(WRONG_USE)
        sys.exit(code if isinstance(code, int) else 0)


def _prepare_streams() -> None:
    """Whatever the terminal's encoding lacks is spelled out, not a reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def occupy_streams() -> None:
    """A standard stream that was closed must not become a file of the log: its number is taken here.

    Nothing can be written to the one that stands for standard output, so that what is printed is missed.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free number is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _usage(error: Exception) -> str | None:
    """What the parser of the command line found wrong; None when it was not the parser."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    message = str(format_message())
    if message.startswith("Usage:"):
        return f"{message}\n"
    text = " ".join(message.split())
    mistyped = _MISTYPED.fullmatch(text)
    if mistyped is not None:
        text = f"{mistyped[1]}{_mistyped(mistyped[2], _typed(error))}"
    else:
        text = _reworded(text)
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    return f"{text.rstrip('.')}{' See' if text.endswith('?') else '; see'} {context.command_path} --help"


def _reworded(text: str) -> str:
    near = _NEAR.fullmatch(text)
    if near is not None:
        names = [name.strip("'") for name in (near[2] or near[3]).split(", ")]
        meant = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        return f"{_reworded(near[1])}; did you mean {meant}?"
    for pattern, words in _REWORDED:
        reworded, found = re.subn(f"^{pattern}$", words, text)
        if found:
            return reworded
    return text


def _mistyped(said: str, typed: str | None) -> str:
    """What is wrong with a value, behind the name of its option."""
    choice = _CHOICES.fullmatch(said)
    if choice is not None:
        return f" is {choice[1]}; it must be {choice[2]}"
    for pattern, kind in _KINDS:
        if pattern.match(said):
            return f" must be {kind}" if typed is None else f" is {typed[:_SHOWN_LETTERS]!r}; it must be {kind}"
    return f": {said}"


def _typed(error: Exception) -> str | None:
    """What was typed where something else is wanted, if the parser remembers it."""
    problems = getattr(error.__cause__, "errors", None)
    typed = problems()[0].get("input") if problems is not None else None
    return typed if isinstance(typed, str) else None
