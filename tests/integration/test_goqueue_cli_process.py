"""The installed `goqueue-cli` as a process: signals, pipes, a full disk, and how soon its help is there."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import goqueue
from goqueue.server.embedded import EmbeddedBroker
from tests.support.patience import PATIENCE_S, wait_until

COMMAND = [sys.executable, "-c", "from goqueue.cli.remote.main import main; main()"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with goqueue.embedded(str(tmp_path_factory.mktemp("process"))) as found:
        found.call("create_topic", name="orders", num_partitions=1)
        yield found


def environment(broker: EmbeddedBroker) -> dict[str, str]:
    return {**os.environ, "GOQUEUE_ADDRESS": broker.endpoints["wire"], "GOQUEUE_CLI_CONFIG": "/nonexistent"}


def start(broker: EmbeddedBroker, *words: str, **streams: Any) -> "subprocess.Popen[bytes]":
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([*COMMAND, *words], env=environment(broker), **piped)


def end(process: "subprocess.Popen[bytes]") -> tuple[int, bytes, bytes]:
    output, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output, errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_consumer_that_then_leaves_its_group(
    broker: EmbeddedBroker, number: signal.Signals, code: int
) -> None:
    group = f"group-{code}"
    process = start(broker, "consume", "orders", "--group", group, "--follow")
    wait_until(lambda: group in broker.call("list_groups")["groups"])
    wait_until(lambda: broker.call("describe_group", group=group)["members"])
    process.send_signal(number)
    assert end(process) == (code, b"", b"")
    assert broker.call("describe_group", group=group)["members"] == []


def test_ctrl_c_keeps_what_was_produced_and_says_so(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="cut", num_partitions=1)
    process = start(broker, "produce", "cut")
    assert process.stdin is not None
    process.stdin.write(b"x\n" * 1000)
    process.stdin.flush()
    wait_until(lambda: broker.call("describe_topic", topic="cut")["total_messages"] == 1000)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=PATIENCE_S)
    code, output, errors = end(process)
    assert code == 130
    assert output.startswith(b"cut: 1,000 messages (")
    assert errors == b""


def test_ctrl_c_leaves_nothing_of_a_bench_behind(broker: EmbeddedBroker) -> None:
    before = broker.call("list_topics")
    process = start(broker, "bench", "end-to-end", "-n", "1000000", "--rate", "100")
    wait_until(lambda: any(name.startswith("bench-") for name in broker.call("list_groups")["groups"]))
    process.send_signal(signal.SIGINT)
    code, output, errors = end(process)
    assert (code, output) == (130, b"")
    assert re.fullmatch(rb"note: stopped after [\d,]+ of 1,000,000 messages\n", errors)
    assert broker.call("list_topics") == before
    assert not any(name.startswith("bench-") for name in broker.call("list_groups")["groups"])


def test_lines_are_published_as_they_come(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="slow", num_partitions=1)
    process = start(broker, "produce", "slow")
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    wait_until(lambda: broker.call("describe_topic", topic="slow")["total_messages"] == 1)
    assert process.poll() is None
    assert end(process)[0] == 0


def test_a_follower_prints_what_comes_later(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="later", num_partitions=2)
    process = start(broker, "consume", "later", "--follow", "--format", "%v", "-n", "2")
    broker.call("publish", topic="later", value="one")
    broker.call("publish", topic="later", value="two")
    assert end(process) == (0, b"one\ntwo\n", b"")


def test_a_reader_that_has_seen_enough_ends_it_quietly(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="long", num_partitions=1)
    broker.call("publish_batch", topic="long", messages=[{"value": "x" * 1000}] * 2000)
    process = start(broker, "consume", "long", "-o", "json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=PATIENCE_S)
    assert process.stderr is not None
    assert (process.returncode, process.stderr.read()) == (141, b"")
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


def test_a_follower_sees_partitions_that_are_added(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="grown", num_partitions=1)
    process = start(broker, "consume", "grown", "--follow", "--format", "%p %v", "-n", "2")
    assert process.stdout is not None
    broker.call("publish", topic="grown", value="one")
    assert process.stdout.readline() == b"0 one\n"
    broker.call("add_partitions", topic="grown", count=2)
    broker.call("publish", topic="grown", value="two", partition=1)
    assert end(process) == (0, b"1 two\n", b"")


def test_what_a_group_was_given_and_nobody_saw_is_given_back_untried(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="glance", num_partitions=1, max_retries=1)
    broker.call("publish_batch", topic="glance", messages=[{"value": "x" * 1000}] * 400)
    for _ in range(3):
        process = start(broker, "consume", "glance", "--group", "glance", "--format", "%d %v")
        assert process.stdout is not None
        assert process.stdout.readline()[:2] == b"1 "
        process.stdout.close()
        process.stdout = None
        assert end(process)[0] == 141
    found = broker.call("reliability_stats", group="glance")
    assert (found["lapsed"], found["redelivered"], found["dead_letters"]) == (0, 0, 0)
    assert broker.call("group_lag", group="glance")["total_lag"] == 400


def test_an_answer_that_cannot_be_printed_is_told_from_a_failure(broker: EmbeddedBroker) -> None:
    with open("/dev/full", "wb") as full:
        process = start(broker, "produce", "orders", "x", stdout=full)
        code, _, errors = end(process)
    assert code == 3
    assert errors.startswith(b"error: 1 message published, only the answer could not be printed")


def test_what_was_not_printed_is_not_acked(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="unseen", num_partitions=1)
    broker.call("publish", topic="unseen", value="x")
    with open("/dev/full", "wb") as full:
        assert end(start(broker, "consume", "unseen", "--group", "unseen", stdout=full))[0] == 1
    assert broker.call("group_lag", group="unseen")["total_lag"] == 1


def test_colours_are_for_terminals(broker: EmbeddedBroker) -> None:
    assert b"\x1b" not in end(start(broker, "topic", "describe", "orders"))[1]


def test_the_help_page_is_there_at_once_and_loads_no_client(broker: EmbeddedBroker) -> None:
    program = "import sys; sys.argv[1:] = ['--help']\n" + (
        "from goqueue.cli.remote.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "slow = ('asyncio', 'goqueue.client', 'yaml', 'uvloop')\n"
        "print(sorted(name for name in sys.modules if name.startswith(slow)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def at_terminal(broker: EmbeddedBroker, *words: str, keys: bytes, after: bytes) -> tuple[int, bytes]:
    """Exit code and screen of a command at a terminal; the keys are pressed once it shows what they come after."""
    leader, follower = pty.openpty()
    env = {**environment(broker), "TERM": "xterm", "COLUMNS": "100"}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*COMMAND, *words], env=env, stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(follower)
    screen = b""
    while True:
        if not select.select([leader], [], [], 20)[0]:
            process.kill()  # nothing happens any more
            break
        try:
            data = os.read(leader, 65536)
        except OSError:  # nobody is at the other end any more
            break
        if not data:
            break
        screen += data
        if keys and after in screen:
            wait_until(lambda: " (sleeping)" in Path(f"/proc/{process.pid}/status").read_text())  # it reads
            os.write(leader, keys)
            keys = b""
    os.close(leader)
    return process.wait(timeout=PATIENCE_S), screen


def test_a_question_is_answered_at_the_terminal(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="dear", num_partitions=1)
    code, screen = at_terminal(broker, "topic", "delete", "dear", keys=b"n\n", after=b"[y/N]: ")
    assert code == 1
    assert b"nothing was deleted" in screen
    assert at_terminal(broker, "topic", "delete", "dear", keys=b"\x03", after=b"[y/N]: ")[0] == 130
    assert "dear" in broker.call("list_topics")["topics"]
    assert at_terminal(broker, "topic", "delete", "dear", keys=b"y\n", after=b"[y/N]: ")[0] == 0
    assert "dear" not in broker.call("list_topics")["topics"]


def test_lines_typed_at_a_terminal_are_published_until_ctrl_d(broker: EmbeddedBroker) -> None:
    broker.call("create_topic", name="typed", num_partitions=1)
    code, screen = at_terminal(broker, "produce", "typed", keys=b"hello\n\x04", after=b"Ctrl-D ends it")
    assert code == 0
    assert b"typed:0:0" in screen
    assert broker.call("read_topic", topic="typed")["messages"][0]["value"] == "hello"


def test_at_a_terminal_there_are_colours_hints_and_a_moving_line(broker: EmbeddedBroker) -> None:
    code, screen = at_terminal(broker, "produce", "orders", "x", keys=b"", after=b"")
    assert code == 0
    assert b"next: \x1b[0m\x1b[2mgoqueue-cli consume orders" in screen
    assert b"\x1b[1m" in screen
    code, screen = at_terminal(broker, "bench", "end-to-end", "-n", "800", keys=b"", after=b"")
    assert code == 0
    assert "━".encode() in screen


def test_the_command_is_installed() -> None:
    assert (Path(sys.executable).parent / "goqueue-cli").exists()
