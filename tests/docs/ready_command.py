"""`goqueue-cli` with its modules loaded ahead: documents type it a hundred times, and loading takes most of its time.

`python ready_command.py SOCKET` loads everything once and waits. `python ready_command.py SOCKET WORD...` is the
command typed: a fork of the first one runs it with the streams, directory and environment of whoever typed it.
"""

import json
import os
import signal
import socket
import sys

_MOST_BYTES = 1 << 20


def wait(path: str) -> None:
    import goqueue.cli.remote.main as command
    from tests.unit.cli.remote.test_tree import LEAVES

    for leaf in LEAVES.values():
        leaf.make_context("x", [], resilient_parsing=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        code = 1
        try:
            _become(connection)
            command.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            connection.send(bytes([code]))
            os._exit(code)


def _become(connection: socket.socket) -> None:
    """Whoever is at the other end."""
    data, streams, *_ = socket.recv_fds(connection, _MOST_BYTES, 3)
    words, directory, environment = json.loads(data)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["goqueue-cli", *words]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def type_it(path: str, words: list[str]) -> int:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    asked = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(connection, [asked], [0, 1, 2])
    return (connection.recv(1) or b"\1")[0]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(type_it(sys.argv[1], sys.argv[2:]))
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    wait(sys.argv[1])
