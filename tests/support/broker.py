"""`goqueue serve` as a real process: start it, talk to it over HTTP, stop it, kill it, start it again.

It listens on free ports of this machine and dies with the test that started it. `stop` demands a clean end.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.patience import PATIENCE_S

GOQUEUE = [sys.executable, "-c", "from goqueue.cli.main import main; main()"]
DOORS = ("--http", "127.0.0.1:0", "--wire", "127.0.0.1:0", "--grpc", "off", "--metrics", "off", "--log-format", "text")
ENDPOINTS = "endpoints.json"
_PR_SET_PDEATHSIG = 1


class NotReady(Exception):
    """The process ended, or said nothing, before it was ready; `code` is how it ended."""

    def __init__(self, code: int | None, stderr: str) -> None:
        super().__init__(f"exit code {code}; it said:\n{stderr}")
        self.code = code
        self.stderr = stderr


class Answer(NamedTuple):
    """What came back. The body is parsed JSON, or text if it is something else."""

    status: int
    headers: HTTPMessage
    body: Any


class HttpClient:
    """One connection, kept open over requests. For one thread."""

    def __init__(self, address: str) -> None:
        self._connection = HTTPConnection(address, timeout=PATIENCE_S)

    def request(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """A body of bytes goes out as it is, anything else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, dict(headers or {}))
            response = self._connection.getresponse()
            received = response.read()
        except BaseException:
            self._connection.close()  # half an exchange: the next request needs a new connection
            raise
        is_json = received and response.headers.get_content_type() == "application/json"
        return Answer(response.status, response.headers, json.loads(received) if is_json else received.decode())

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> "HttpClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class RunningBroker:
    """A broker process over a data directory, through all its lives. Make one with `running_broker`."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        stderr: Path | None = None,
        program: Sequence[str] = (),
    ) -> None:
        """Log lines go to a file beside the data directory, or to `stderr`. `program` is another one than `goqueue`."""
        self.data_dir = data_dir
        self.flags = flags
        self._program = program
        self._env = {**os.environ, **(env or {})}
        self._stderr = stderr or data_dir.with_name(f"{data_dir.name}.stderr")
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[tuple[threading.Thread, HttpClient]] = []
        self._of_thread = threading.local()
        self.endpoints: dict[str, str] = {}
        """The doors that are open, by name."""
        self.stdout = ""
        """What the last life that ended said on standard output."""
        self._said = b""

    # --- the process

    def start(self) -> None:
        """Returns when the broker takes requests; raises NotReady when it never will."""
        assert self._process is None, "it runs already"
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*(self._program or GOQUEUE), "serve", "--data-dir", str(self.data_dir), *DOORS, *self.flags],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                preexec_fn=_become_child,
            )
        if not self._is_announced():
            self._process.kill()
            code = self._reap()
            raise NotReady(code, self.stderr)
        self.endpoints = json.loads((self.data_dir / ENDPOINTS).read_bytes())

    def stop(self) -> None:
        """As an operator does it: SIGTERM, a clean end, exit code 0."""
        self.signal(signal.SIGTERM)
        self.wait_for_end(code=0)

    def kill(self) -> None:
        """kill -9: nothing is said, finished or flushed."""
        self.signal(signal.SIGKILL)
        self.wait_for_end(code=-signal.SIGKILL)

    def cut_off(self) -> None:
        """kill -9 of one that may have ended by itself meanwhile, because its disk has gone."""
        self.signal(signal.SIGKILL)
        self._reap()

    def restart(self, *flags: str) -> None:
        """The next life over the same data: after `kill` as it is, otherwise after `stop`. Flags replace the old."""
        if self.running:
            self.stop()
        if flags:
            self.flags = flags
        self.start()

    def signal(self, number: int) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)

    def wait_for_end(self, *, code: int) -> None:
        ended = self._reap()
        assert ended == code, f"exit code {ended}, not {code}; it said:\n{self.stderr}"
        assert "Traceback" not in self.stderr, self.stderr

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def ended(self) -> int | None:
        """The exit code of a process that ended by itself; None as long as it runs."""
        assert self._process is not None, "it was not started, or was stopped"
        return self._process.poll()

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def stderr(self) -> str:
        """The log lines of all lives so far."""
        return self._stderr.read_text()

    @property
    def http(self) -> str:
        return self.endpoints["http"]

    @property
    def wire(self) -> str:
        return self.endpoints["wire"]

    # --- talking to it

    def client(self, door: str = "http") -> HttpClient:
        """A connection of your own; it is closed with this life of the broker, unless another thread is using it."""
        client = HttpClient(self.endpoints[door])
        self._clients.append((threading.current_thread(), client))
        return client

    def request(self, method: str, path: str, body: object = None) -> Answer:
        """On a connection that this thread keeps open."""
        if getattr(self._of_thread, "pid", None) != self.pid:  # another life may have the same address
            self._of_thread.client, self._of_thread.pid = self.client(), self.pid
        client: HttpClient = self._of_thread.client
        return client.request(method, path, body)

    # --- below

    def _is_announced(self) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        self._said = b""
        while not self._said.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                return False
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                return False
            self._said += part
        return True

    def _reap(self) -> int:
        assert self._process is not None, "it does not run"
        process, self._process = self._process, None
        assert process.stdout is not None
        others = []
        for thread, client in self._clients:
            if thread is not threading.current_thread() and thread.is_alive():
                others.append((thread, client))
            else:
                client.close()
        self._clients = others
        try:
            return process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            self.stdout = (self._said + process.stdout.read()).decode()
            process.stdout.close()


@contextmanager
def running_broker(
    tmp_path: Path,
    *flags: str,
    env: Mapping[str, str] | None = None,
    stderr: Path | None = None,
    program: Sequence[str] = (),
) -> Iterator[RunningBroker]:
    """A broker with its data at `tmp_path/data`. It is stopped cleanly at the end, if it still runs and all is well."""
    broker = RunningBroker(tmp_path / "data", *flags, env=env, stderr=stderr, program=program)
    broker.start()
    try:
        yield broker
    except BaseException:
        if broker.running:
            broker.kill()
        raise
    if broker.running:
        broker.stop()


def refusal(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """The error of a request that must have been refused so, in the one shape errors have."""
    assert answer.status == status, answer
    error: dict[str, Any] = answer.body
    assert list(error) == ["error", "code", "retriable", "details"], error
    assert error["code"] == code, error
    assert error["error"], "it must say what is wrong"
    return error


def _become_child() -> None:
    """Dies with the thread of the tests that started it, and heeds signals they may ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
