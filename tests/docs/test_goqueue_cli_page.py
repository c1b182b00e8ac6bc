"""docs/goqueue-cli.md names every command, option, operation, exit code and field, and shows each command at work."""

import re
import shlex

from goqueue.api.operations import OPERATIONS
from goqueue.cli import failures
from goqueue.cli.remote.bench_gauge import Gauge
from goqueue.cli.remote.tally import Tally
from goqueue.client.receipts import Outcome
from tests.docs.markdown import ROOT, blocks
from tests.unit.cli.remote.test_tree import LEAVES, TREE

PAGE = (ROOT / "docs" / "goqueue-cli.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
WALK = (ROOT / "docs" / "walk.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
WORDS = set(re.findall(r"[\w.%-]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))
"""What stands in code, word by word."""


def test_every_command_has_a_row() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    assert not [" ".join(path) for path in LEAVES if f"`{' '.join(path)}" not in rows]


def test_every_option_is_there() -> None:
    options = {
        option
        for command in TREE.values()
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }
    assert not options - WORDS - {"--help", "--version"}


def test_every_command_is_shown_at_work() -> None:
    shown = " ".join(block.text for page in (PAGE, WALK) for block in blocks(page) if block.language == "bash")
    assert not [" ".join(path) for path in LEAVES if not re.search(rf"goqueue-cli .*?\b{' '.join(path)}\b", shown)]


def test_the_walk_can_follow_the_readme_with_the_same_data() -> None:
    typed = " ".join(block.text for block in blocks(WALK) if block.language == "bash")
    made = set(re.findall(r"topic create (\S+)", typed)) | set(re.findall(r"--group (\S+)", typed))
    assert made
    taken = set(re.findall(r'"name": "([\w-]+)"', README)) | set(re.findall(r"/groups/([\w-]+)", README))
    assert taken
    assert not made & taken
    lists = re.findall(r"schedule list.*", typed)
    assert [line for line in lists if "--topic" in line] == lists  # there are schedules of the README's


def test_every_operation_names_a_command_there_is() -> None:
    table = PAGE.partition("| operation | command |")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| `([a-z -]+)` \|$", table, re.MULTILINE)
    named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(named) == sorted(operation.name for operation in OPERATIONS)
    assert not [command for _, command in rows if tuple(shlex.split(command)) not in LEAVES]


def test_every_field_of_objects_that_are_not_the_apis_is_there() -> None:
    tally = Tally("orders")
    tally.add_outcome(Outcome("orders", 0, 1, 1, None))
    summary = tally._summary(1.0)
    numbers = Gauge("produce", 1, 1).numbers()
    fields = summary.keys() | summary["partitions"]["0"].keys() | numbers.keys() | numbers["latency_ms"].keys()
    assert not fields - WORDS


def test_the_exit_codes_are_those_of_the_command() -> None:
    rows = re.compile(r"^\| (\d[\d +n]*) \|", re.MULTILINE)
    assert failures.__doc__ is not None
    assert rows.findall(PAGE) == rows.findall(failures.__doc__)
