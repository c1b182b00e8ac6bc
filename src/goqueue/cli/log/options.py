"""Arguments and options that several commands share, and the settings made of what was typed."""

import re
from typing import Annotated, Any, Final

import typer

from goqueue.cli.output import Format
from goqueue.model.errors import InvalidRequest, InvalidSetting
from goqueue.model.settings import LogSettings


def _named(data_dir: str) -> str:
    if not data_dir:
        raise InvalidRequest("--data-dir is empty: name a directory, or leave it out for ./data")
    if "\0" in data_dir:
        raise InvalidRequest("--data-dir holds a NUL, which no path can")
    return data_dir


Name = Annotated[str, typer.Argument(metavar="NAME", hidden=True)]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", hidden=True)]
DataDir = Annotated[str, typer.Option("--data-dir", metavar="DIRECTORY", callback=_named, help="Where logs are kept.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]
DATA_DIR: Final = "./data"
_OPTIONS: Final = {"retention_ms": "retention"}


def settings(**fields: Any) -> LogSettings:
    """LogSettings, complaining in the words that were typed: --segment-bytes, not segment_bytes."""
    try:
        return LogSettings(**fields)
    except InvalidSetting as error:
        text = re.sub(r"^\w+", lambda name: f"--{_OPTIONS.get(name[0], name[0]).replace('_', '-')}", str(error))
        raise InvalidRequest(text) from error


def check_range(option: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise InvalidRequest(f"{option} is {value}; it must be at least {least}")
