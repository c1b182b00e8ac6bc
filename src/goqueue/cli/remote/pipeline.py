"""`goqueue-cli pipeline`: list, run, status. Spark is imported when a pipeline is asked for, and only then."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from goqueue.cli.failures import BY_SIGNAL, FAILED
from goqueue.cli.output import complain, note, print_table, say
from goqueue.cli.remote.chosen import add, find_address, group
from goqueue.cli.remote.names import option
from goqueue.cli.remote.showing import ABSENT, ago, count, hint, print_fields, show, state, text, when
from goqueue.config.nearness import alike
from goqueue.model.errors import InvalidRequest, NotFound, Unavailable

if TYPE_CHECKING:
    from goqueue.spark.pipelines.frame import Pipeline

app = group("pipeline", "Archive, replay and reshape topics with Spark.")


def _pipelines() -> "dict[str, Pipeline]":
    try:
        from goqueue.spark.pipelines.table import PIPELINES
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing == "goqueue":
            raise
        raise Unavailable(f"pipelines need Spark ({missing} is missing); run: pip install 'goqueue[spark]'") from None
    return PIPELINES


def _complete(incomplete: str) -> list[str]:
    try:
        return [name for name in _pipelines() if name.startswith(incomplete)]
    except Unavailable:
        return []


def list_pipelines(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this one.", autocompletion=_complete)] = None,
) -> None:
    """List the pipelines, what they do, and the options each takes."""
    found = _pipelines().values() if name is None else [_find(name)]
    reply = {
        "pipelines": [
            {
                "name": each.name,
                "what": each.what,
                "options": [
                    {"name": one.name, "default": one.default, "required": one.required, "help": one.help}
                    for one in each.options
                ],
            }
            for each in found
        ]
    }

    def table(reply: dict[str, Any]) -> None:
        for each in reply["pipelines"]:
            say((each["name"], "bold"), f": {each['what']}")
            rows = [
                (f"  {one['name']}", "required" if one["required"] else text(one["default"]), one["help"])
                for one in each["options"]
            ]
            print_table(("  option", "default", "what it says"), rows)
            say()

    show(reply, table)
    if name is None:
        hint("goqueue-cli pipeline run archive --set topics=orders --set lake=/tmp/lake --dry-run")


def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The pipeline.", autocompletion=_complete, show_default=False)
    ],
    given: Annotated[
        list[str] | None,
        option("--set -s", "OPTION=VALUE", "One of its options, see `list NAME`; may be given again."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and change nothing.")] = False,
    directory: Annotated[
        Path | None, option("--state", "DIR", "Where it keeps its checkpoint, and goes on from.")
    ] = None,
    master: Annotated[str | None, option("--master", "MASTER", "Spark's master, like local[4] (local[*]).")] = None,
) -> None:
    """Run a pipeline here, until it is done; the same again goes on from where it was."""
    pipeline = _find(name)
    from goqueue.spark.pipelines.frame import ADDRESS
    from goqueue.spark.pipelines.running import run_pipeline

    options = dict(map(_split, given or []))
    if ADDRESS in pipeline.options and ADDRESS.name not in options:
        options[ADDRESS.name] = find_address()[0]
    ended = run_pipeline(pipeline, options, is_dry=dry_run, state=directory, master=master)
    reply = {
        "run": ended.name,
        "state": str(ended.state),
        "dry_run": dry_run,
        "stopped": ended.signal is not None,
        "summary": msgspec.to_builtins(ended.summary),
    }
    show(reply, _print_run)
    if ended.signal is not None:
        note(f"stopped; the same command goes on from where it was: {ended.name}")
        raise typer.Exit(BY_SIGNAL + ended.signal)
    if ended.summary is not None and not ended.summary.is_well:
        for problem in ended.summary.problems:
            complain(problem)
        raise typer.Exit(FAILED)
    if dry_run:
        hint(f"the same without --dry-run: goqueue-cli pipeline run {name} ...")


def _find(name: str) -> "Pipeline":
    pipelines = _pipelines()
    if name not in pipelines:
        near = alike(name, pipelines)
        there_is = f"did you mean {near}?" if near else f"there are {', '.join(pipelines)}"
        raise InvalidRequest(f"there is no pipeline {name!r}; {there_is}")
    return pipelines[name]


def _split(setting: str) -> tuple[str, str]:
    name, equals, value = setting.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"--set is {setting!r}; write OPTION=VALUE, like topic=orders")
    return name, value


def _print_run(reply: dict[str, Any]) -> None:
    if reply["summary"] is not None:
        _print_summary(reply["summary"])
    if not reply["dry_run"]:
        say((f"state: {reply['state']}", "dim"))


def _print_summary(summary: dict[str, Any]) -> None:
    shown = {name: _cell(value) for name, value in summary["figures"].items()}
    if summary["bad_rows"]:
        shown["bad rows"] = f"{count(summary['bad_rows'])}, in {text(summary['bad_rows_at'])}"
    if summary["report"] is not None:
        shown["report"] = text(summary["report"])
    print_fields(list(shown.items()))
    for table in summary["tables"]:
        say()
        say((table["title"], "bold"))
        if not table["rows"]:
            say(("nothing", "dim"))
            continue
        rows = [tuple(_cell(cell) for cell in row) for row in table["rows"]]
        numbers = [
            name
            for at, name in enumerate(table["columns"])
            if all(isinstance(row[at], int | float) for row in table["rows"])
        ]
        print_table(table["columns"], rows, numbers=numbers)


def _cell(value: object) -> str:
    return count(value) if isinstance(value, int | float) else text(value)


def status(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's name, or the directory of its state.")
    ] = None,
) -> None:
    """Which runs there were, or how one of them is or went."""
    from goqueue.spark.pipelines.state import home, known_runs, read_status

    if run is None:
        runs = known_runs(home())
        reply = {"runs": [{"run": name, **msgspec.to_builtins(one)} for name, one in runs.items()]}
        show(reply, _print_runs)
        return
    found = read_status(Path(run)) or read_status(home() / run)
    if found is None:
        raise NotFound(
            f"there is no run {run!r} in {home()}, and no directory of one; goqueue-cli pipeline status lists them"
        )
    show({"run": Path(run).name, **msgspec.to_builtins(found)}, _print_status)


def _print_runs(reply: dict[str, Any]) -> None:
    rows = [
        (text(one["run"]), state(one["state"]), _progress(one), ago(one["updated"]), text(_options(one)))
        for one in reply["runs"]
    ]
    if not rows:
        note("there are no runs")
        hint("goqueue-cli pipeline list")
        return
    print_table(("run", "state", "progress", "updated", "options"), rows, optional=("progress",))


def _options(one: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in one["options"].items())


def _progress(one: dict[str, Any]) -> str:
    if not one["done"] and not one["total"]:
        return ABSENT
    return f"{count(one['done'])}" + (f" of {count(one['total'])}" if one["total"] is not None else "")


def _print_status(one: dict[str, Any]) -> None:
    print_fields(
        [
            ("run", (text(one["run"]), "bold")),
            ("pipeline", text(one["pipeline"])),
            ("options", text(_options(one))),
            ("state", state(one["state"])),
            *([("doing", f"{text(one['doing'])}, {count(one['rate'])} rows/s")] if one["doing"] else []),
            ("progress", _progress(one)),
            ("started", f"{when(one['started'])}, for the {one['starts']}. time"),
            ("finished", when(one["finished"])),
            ("counters", ", ".join(f"{name} {count(number)}" for name, number in one["counters"].items()) or ABSENT),
            *([("error", (text(one["error"]), "bold red"))] if one["error"] else []),
        ]
    )
    if one["summary"] is not None:
        say()
        _print_summary(one["summary"])


add(app, list=list_pipelines, run=run, status=status)
