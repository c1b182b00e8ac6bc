"""Every `bash` and `python` block of the documents runs, in order, as a reader would type it.

A document is one shell script in one scratch directory, with the installed `goqueue` first on the PATH, so
what an early block writes a later one can read; `python` blocks with no `bash` block between them are one
program. `make` works on this repository with the environment that runs the suite: nothing is installed
again. A `console` or `text` block is for reading only. Of what takes minutes or needs root only the
existence is checked: see the two tables. So it is with `make run` and something behind it.
"""

import os
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from tests.chaos.spark_driver import QUICK_JAVA, SMALL, link_spark
from tests.docs.markdown import ROOT, Block, blocks, documents
from tests.support.patience import PATIENCE_S

VENV = Path(sys.prefix)
READY = ROOT / "tests" / "docs" / "ready_command.py"

# Targets that do not belong inside a test, and why; of these only `make -n` is run.
NOT_RUN_HERE = {
    "test": "it is what runs this",
    "lint": "make test has just done it",
    "busy": "keeps a machine busy for minutes",
    "bench": "measures for minutes",
    "bench-short": "measures, which a suite beside it would disturb",
    "sim": "simulates for minutes",
    "crash": "kills for minutes",
    "broker-crash": "kills for minutes",
    "group-crash": "kills for minutes",
    "group-rebalance": "measures, which a suite beside it would disturb",
    "delivery-crash": "kills for minutes",
    "client-crash": "kills for minutes",
    "client-swarm": "comes and goes for minutes",
    "txn-lost": "kills for minutes",
    "spark-crash": "kills for minutes",
    "powercut": "needs root and a loop device",
    "sidecar-powercut": "needs root and a loop device",
    "delivery-powercut": "needs root and a loop device",
    "scale": "measures, which a suite beside it would disturb",
    "clean": "would remove the environment that runs this",
}

# Modules of this repository that a document runs with `python -m`; of these only `--help` is run.
MODULES_NOT_RUN_HERE = {
    "sim": "simulates for minutes",
    "bench": "measures for minutes",
    "tests.chaos.kill": "kills for minutes",
    "tests.chaos.broker_kill": "kills for minutes",
    "tests.chaos.client_swarm": "comes and goes for minutes",
    "tests.chaos.group_kill": "kills for minutes",
    "tests.chaos.group_rebalance": "measures, which a suite beside it would disturb",
    "tests.chaos.powercut": "needs root and a loop device",
}

PRELUDE = """
set -euo pipefail
make() {{
    local argument dry=()
    case "$*" in
        run) serve; return ;;
        run\\ *) dry=(-n) ;;  # another broker: one is enough here
    esac
    for argument in "$@"; do
        case "$argument" in {not_run_here}) dry=(-n) ;; esac
    done
    command make --no-print-directory -C "{root}" "${{dry[@]}}" \\
        -o "{venv}/.goqueue-run" -o "{venv}/.goqueue-spark" -o "{venv}/.goqueue-test" \\
        VENV="{venv}" DATA_DIR="$SCRATCH/data" "$@"
}}
python() {{
    case "${{1-}} ${{2-}}" in
        {modules_not_run_here}) (cd "{root}" && command python -m "$2" --help >/dev/null) ;;
        *) command python "$@" ;;
    esac
}}
# `make run` stays in the foreground and opens well-known ports: here it goes to the background, on free ones.
serve() {{
    (
        export GOQUEUE_HTTP_ADDR=127.0.0.1:0 GOQUEUE_WIRE_ADDR=127.0.0.1:0 GOQUEUE_METRICS_ADDR=127.0.0.1:0
        export GOQUEUE_GRPC_ADDR=127.0.0.1:0
        exec make --no-print-directory -C "{root}" -o "{venv}/.goqueue-run" VENV="{venv}" DATA_DIR="$SCRATCH/data" run
    ) &
    while kill -0 $! 2>/dev/null; do [ -e "$SCRATCH/data/endpoints.json" ] && return; sleep 0.1; done
    echo "the broker did not get ready"; return 1
}}
curl() {{
    local argument arguments=() http
    http=$(command python -c 'import json, sys; print(json.load(sys.stdin)["http"])' <"$SCRATCH/data/endpoints.json")
    for argument in "$@"; do arguments+=("${{argument//127.0.0.1:8080/$http}}"); done
    command curl --silent --show-error --fail-with-body "${{arguments[@]}}"
}}
# The commands that talk to a broker find the one that was started here. They are loaded ahead: there are many of them.
goqueue-cli() {{
    local argument arguments=() wire=127.0.0.1:9001 endpoints="$SCRATCH/data/endpoints.json"
    if [ -e "$endpoints" ]; then wire=$(sed -n 's/.*"wire": *"\\([^"]*\\)".*/\\1/p' "$endpoints"); fi
    for argument in "$@"; do arguments+=("${{argument//127.0.0.1:9001/$wire}}"); done
    local -x GOQUEUE_ADDRESS=$wire GOQUEUE_CLI_CONFIG="$SCRATCH/cli.yaml"
    if [ -S "$SCRATCH/ready" ]; then command python -I -S "{ready}" "$SCRATCH/ready" "${{arguments[@]}}"
    else command goqueue-cli "${{arguments[@]}}"; fi
}}
# A program names the ports everybody has; here it gets those of the broker that was started.
localised() {{
    local door port changes=""
    for door in http:8080 wire:9001 grpc:9000; do
        port=$(command python - "${{door%:*}}" "$SCRATCH/data/endpoints.json" <<'END'
import json, os, sys
print(json.load(open(sys.argv[2])).get(sys.argv[1], "") if os.path.exists(sys.argv[2]) else "")
END
        )
        if [ -n "$port" ]; then changes="$changes;s/127.0.0.1:${{door#*:}}/$port/g"; fi
    done
    sed "$changes"
}}
trap 'running=$(jobs -p); [ -z "$running" ] || {{ kill $running; wait $running; }} || true' EXIT
"""

# Documents whose programs start Spark: `tests/spark/test_document.py` runs them in a session that is there already.
WITH_SPARK = ("docs/spark.md",)

DOCUMENTS = [
    document
    for document in documents()
    if any(block.language in {"bash", "python"} for block in blocks(document.read_text(encoding="utf-8")))
]


def script(name: str, runnable: list[Block]) -> str:
    modules = " | ".join(f'"-m {module}"' for module in MODULES_NOT_RUN_HERE)
    targets = " | ".join(NOT_RUN_HERE)
    prelude = PRELUDE.format(root=ROOT, venv=VENV, ready=READY, not_run_here=targets, modules_not_run_here=modules)
    parts = [prelude]
    if any("goqueue-cli" in block.text for block in runnable):
        parts.append(f'command python "{READY}" "$SCRATCH/ready" &\n')
    for language, group in groupby(runnable, lambda block: block.language):
        said = [(f"--- {name}, the {language} block on line {block.line}", block.text) for block in group]
        if language == "bash":
            parts += [f"echo '{place}'\n{text}" for place, text in said]
        else:
            program = "".join(f"print({place!r}, flush=True)\n{text}" for place, text in said)
            parts.append(f"localised <<'END-OF-BLOCK' | python -\n{program}END-OF-BLOCK\n")
    return "".join(parts)


def run(text: str, scratch: Path) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quick = {"spark__ui__enabled": "false", "spark__driver__extraJavaOptions": QUICK_JAVA, **SMALL}
    home = link_spark(scratch / "spark-home", **quick)
    return subprocess.run(
        [shutil.which("bash") or "bash", "-c", text],
        cwd=scratch,
        env={**inherited, "PATH": path, "SCRATCH": str(scratch), "NO_COLOR": "1", "SPARK_HOME": home},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(document, id=name, marks=[pytest.mark.long] if name in WITH_SPARK else [])
        for document in DOCUMENTS
        for name in [str(document.relative_to(ROOT))]
    ],
)
def test_every_command_of_a_document_succeeds(document: Path, tmp_path: Path) -> None:
    runnable = [b for b in blocks(document.read_text(encoding="utf-8")) if b.language in {"bash", "python"}]
    done = run(script(str(document.relative_to(ROOT)), runnable), tmp_path)
    assert done.returncode == 0, f"exit code {done.returncode}; the last block named below failed\n{done.stdout}"


def test_a_failing_command_fails_its_document(tmp_path: Path) -> None:
    done = run(script("a document", [Block("bash", "false\necho not reached\n", 1)]), tmp_path)
    assert done.returncode != 0
    assert "not reached" not in done.stdout


def test_a_make_target_that_does_not_exist_fails_its_document(tmp_path: Path) -> None:
    done = run(script("a document", [Block("bash", "make no-such-target\n", 1)]), tmp_path)
    assert done.returncode != 0


@pytest.mark.parametrize("target", NOT_RUN_HERE)
def test_targets_not_run_here_exist(target: str, tmp_path: Path) -> None:
    done = run(script("a document", [Block("bash", f"make {target}\n", 1)]), tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", MODULES_NOT_RUN_HERE)
def test_modules_not_run_here_exist(module: str, tmp_path: Path) -> None:
    done = run(script("a document", [Block("bash", f"python -m {module} --seeds 5\n", 1)]), tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_module_that_does_not_exist_fails_its_document(tmp_path: Path) -> None:
    done = run(script("a document", [Block("bash", "python -m no_such_module\n", 1)]), tmp_path)
    assert done.returncode != 0


@pytest.mark.parametrize("name", ["docs/grpc.md"])
def test_every_program_of_a_document_can_be_run_again(name: str, tmp_path: Path) -> None:
    found = [b for b in blocks((ROOT / name).read_text(encoding="utf-8")) if b.language in {"bash", "python"}]
    again = [each for b in found for each in ([b, Block("bash", ":\n", b.line), b] if b.language == "python" else [b])]
    done = run(script(name, again), tmp_path)
    assert done.returncode == 0, f"exit code {done.returncode}; the last block named below failed\n{done.stdout}"
