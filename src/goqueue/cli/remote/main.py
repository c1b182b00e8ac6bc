"""The `goqueue-cli` command: what the installed script runs. It imports little: a help page should be there at once."""

import signal
import sys

from goqueue.cli.failures import BY_SIGNAL, WRONG_USE, occupy_streams
from goqueue.cli.output import complain
from goqueue.model.errors import InvalidSetting


def main() -> None:
    occupy_streams()
    try:
        from goqueue.cli.remote.commands import PROGRAM, app, prepare_completion

        prepare_completion()
        app(prog_name=PROGRAM)
    except InvalidSetting as error:
        complain(str(error))
        sys.exit(WRONG_USE)
    except KeyboardInterrupt:
        sys.exit(BY_SIGNAL + signal.SIGINT)
