"""`goqueue-cli completion`: a script for the shell; names of topics, groups and contexts are completed, too."""

import importlib
from enum import StrEnum
from typing import Annotated

import typer

from goqueue.cli.failures import PlainCommand
from goqueue.cli.output import emit
from goqueue.cli.remote.chosen import single
from goqueue.cli.remote.commands import COMPLETION_VARIABLE, PROGRAM
from goqueue.cli.remote.showing import hint

app = single()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_WHERE = {
    Shell.BASH: "source <(goqueue-cli completion bash), in ~/.bashrc for good",
    Shell.ZSH: "source <(goqueue-cli completion zsh), in ~/.zshrc behind compinit for good",
    Shell.FISH: "goqueue-cli completion fish > ~/.config/fish/completions/goqueue-cli.fish",
}


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
) -> None:
    """Print a script that completes commands, options and names in your shell."""
    scripts = importlib.import_module("typer.completion")
    emit(scripts.get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=shell.value) + "\n")
    hint(_WHERE[shell])


app.command("completion", cls=PlainCommand)(completion)
