"""The `goqueue` command: what the installed script runs.

The commands are imported by `main` itself, so that an environment they refuse is a line, not a traceback.
"""

import sys

from goqueue.cli.failures import WRONG_USE, occupy_streams
from goqueue.cli.output import complain
from goqueue.model.errors import InvalidSetting


def main() -> None:
    occupy_streams()
    try:
        from goqueue.cli.commands import app
    except InvalidSetting as error:
        complain(str(error))
        sys.exit(WRONG_USE)
    app(prog_name="goqueue")
