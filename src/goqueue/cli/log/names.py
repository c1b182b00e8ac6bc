"""`goqueue log list`: which logs a data directory has."""

from goqueue.cli.data_directory import names_in
from goqueue.cli.log.options import DATA_DIR, DataDir, Output
from goqueue.cli.output import Format, note, print_json, printable, say


def list_names(data_dir: DataDir = DATA_DIR, output: Output = Format.TABLE) -> None:
    """Name the logs of a data directory, one on each line."""
    names = names_in(data_dir)
    if output is Format.JSON:
        print_json([printable(name) for name in names])
        return
    for name in names:
        say(printable(name))
    if not names:
        note(f"{data_dir} has no logs yet; write one with goqueue log append NAME --value hello")
