"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from goqueue.cli.output import Format

Name = Annotated[str, typer.Argument(metavar="NAME", help="The log, like orders or orders/0.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="The logs; all of them if none is named.")]
DataDir = Annotated[str, typer.Option("--data-dir", help="Where logs are kept.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]
DATA_DIR = "./data"
