"""`python -m goqueue.spark.pipelines NAME --option value`, and the same file under spark-submit.

Exit codes are those of `goqueue-cli`: 0 all is well, 1 it failed or something is not well, 2 wrong use, 128 + N stopped
by signal N.
"""

import json
import os
import sys

if sys.path and os.path.dirname(os.path.abspath(__file__)) == os.path.abspath(sys.path[0]):
    del sys.path[0]  # run as a file, by spark-submit: what lies beside it is a package's

import argparse
from pathlib import Path

import msgspec

from goqueue.model.errors import GoQueueError, InvalidRequest
from goqueue.spark.pipelines.frame import Summary
from goqueue.spark.pipelines.running import run_pipeline
from goqueue.spark.pipelines.table import PIPELINES


def main(words: list[str]) -> int:
    given = {name: value for name, value in vars(_parser().parse_args(words)).items() if value is not None}
    pipeline = PIPELINES[given.pop("pipeline")]
    is_dry, as_json = given.pop("dry run"), given.pop("as json")
    state, master = given.pop("state directory", None), given.pop("spark master", None)
    try:
        ended = run_pipeline(pipeline, given, is_dry=is_dry, state=state, master=master)
    except (GoQueueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, InvalidRequest) else 1
    if ended.summary is not None:
        sys.stdout.write(json.dumps(msgspec.to_builtins(ended.summary)) + "\n" if as_json else show(ended.summary))
    if ended.signal is not None:
        return 128 + ended.signal
    return int(ended.summary is not None and not ended.summary.is_well)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="goqueue.spark.pipelines", description="Run a pipeline.")
    names = parser.add_subparsers(dest="pipeline", required=True, metavar="NAME")
    for pipeline in PIPELINES.values():
        own = names.add_parser(pipeline.name, help=pipeline.what, description=pipeline.what, allow_abbrev=False)
        for option in pipeline.options:
            default = "" if option.default is None else f" ({option.default})"
            own.add_argument(f"--{option.name}", dest=option.name, help=f"{option.help}{default}".replace("%", "%%"))
        own.add_argument("--dry-run", dest="dry run", action="store_true", help="Say what it would do; change nothing.")
        own.add_argument("--state", dest="state directory", type=Path, help="Where its checkpoint and status are.")
        own.add_argument(
            "--master", dest="spark master", help="Spark's master, unless spark-submit says it (local[*])."
        )
        own.add_argument("--json", dest="as json", action="store_true", help="The summary as JSON.")
    return parser


def show(summary: Summary) -> str:
    """A summary in plain lines."""
    lines = [f"{name}: {value}" for name, value in summary.figures.items()]
    for table in summary.tables:
        lines += ["", table.title, "\t".join(table.columns)]
        lines += ["\t".join("-" if cell is None else str(cell) for cell in row) for row in table.rows]
    if summary.bad_rows:
        lines.append(f"bad rows: {summary.bad_rows}, in {summary.bad_rows_at}")
    if summary.report is not None:
        lines.append(f"report: {summary.report}")
    lines += [f"not well: {problem}" for problem in summary.problems]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
