"""`goqueue log`: a log without a broker, one command a file."""

import typer

from goqueue.cli.failures import PlainCommand
from goqueue.cli.log.append import append
from goqueue.cli.log.cat import cat
from goqueue.cli.log.clean import clean
from goqueue.cli.log.demo import demo
from goqueue.cli.log.names import list_names
from goqueue.cli.log.stats import stats
from goqueue.cli.log.verify import verify

app = typer.Typer(
    name="log",
    help="Write, read and check a log on this machine, without a broker. A log's NAME is like orders or orders/0.",
    epilog="Exit codes: 0 done, 1 failed or damage found, 2 wrong use, 3 done but the answer could not be printed, "
    "74 the disk failed, 128 + N stopped by signal N.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for name, command in (
    ("append", append),
    ("cat", cat),
    ("verify", verify),
    ("stats", stats),
    ("list", list_names),
    ("clean", clean),
    ("demo", demo),
):
    app.command(name, cls=PlainCommand)(command)
