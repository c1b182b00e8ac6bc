"""The Go program of docs/grpc.md: it is the one in examples/go, names what there is, and runs as the page says.

Running it downloads modules and compiles them, so that is marked `long`; it is left out where there is no Go.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from goqueue.api.grpc.proto import GO_PACKAGE
from goqueue.api.grpc.streams import SCHEMA
from tests.docs.markdown import ROOT, blocks
from tests.support.broker import running_broker
from tests.support.patience import PATIENCE_S

PAGE = (ROOT / "docs" / "grpc.md").read_text(encoding="utf-8")
PROGRAM = (ROOT / "examples" / "go" / "main.go").read_text(encoding="utf-8")
(ON_THE_PAGE,) = (block for block in blocks(PAGE) if block.language == "go")
(COMMANDS,) = (block.text for block in blocks(PAGE) if block.language == "text" and "go mod init" in block.text)


def test_the_program_on_the_page_is_the_one_that_is_tried() -> None:
    assert ON_THE_PAGE.text == PROGRAM


def test_the_program_imports_what_the_compiler_makes() -> None:
    directory, _, package = GO_PACKAGE.partition(";")
    (module,) = re.findall(r"^go mod init (\S+)$", COMMANDS, re.MULTILINE)
    assert f'pb "{module}/{directory}"' in PROGRAM
    assert f"`{package}` in `{directory}`" in PAGE
    assert f'option go_package = "{GO_PACKAGE}";' in (ROOT / "proto/goqueue/v1/goqueue.proto").read_text()


def test_the_program_names_only_calls_messages_and_fields_that_there_are() -> None:
    """What a compiler would say, for those who have none."""
    calls = set(re.findall(r"queue\.(\w+)\(", PROGRAM))
    assert calls
    assert calls <= {rpc.name for rpc in SCHEMA.rpcs}
    messages = set(re.findall(r"&pb\.(\w+)\{", PROGRAM))
    assert messages
    assert messages <= set(SCHEMA.messages)
    fields = {
        "".join(part[:1].upper() + part[1:] for part in field.name.split("_"))
        for message in SCHEMA.messages.values()
        for field in message.fields
    }
    named = re.findall(r"^\s*(?:Subscription: &pb\.\w+\{)?(\w+): +(?:proto|&pb|\[\])", PROGRAM, re.MULTILINE)
    assert len(named) > 5
    assert {*named, *re.findall(r"\.Get(\w+)\(", PROGRAM)} <= fields


@pytest.mark.long
@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go here")
def test_the_program_runs_as_the_page_says(tmp_path: Path) -> None:
    path = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environ = {**os.environ, "PATH": os.pathsep.join(path), "GOBIN": str(tmp_path / "bin")}
    shipping = tmp_path / "shipping"
    shipping.mkdir()
    (shipping / "main.go").write_text(PROGRAM, encoding="utf-8")

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=shipping, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(f'{COMMANDS}\ngo mod tidy\ngo vet .\ntest -z "$(gofmt -l main.go)"')
    with running_broker(tmp_path, "--grpc", "127.0.0.1:0") as broker:
        for _ in range(2):  # also where the topic and the group are there
            said = run(f"go run . {broker.endpoints['grpc']}").splitlines()
            assert [line.split()[0] for line in said] == ["published"] * 3 + ["received"] * 3
            assert said[3:] == ["received first", "received second", "received third"]
            assert all(line.endswith(" durable") for line in said[:3])
        assert broker.request("GET", "/groups/postmen").body["members"] == []
        lag = json.dumps(broker.request("GET", "/groups/postmen/lag").body)
        assert set(re.findall(r'"in_flight": (\d+)', lag)) == {"0"}, "all of them are settled"
