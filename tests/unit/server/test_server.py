"""A broker and its doors: they open last, say where they are, and close first."""

import asyncio
import gc
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from goqueue.broker.broker import Broker, BrokerSettings
from goqueue.config.loading import load
from goqueue.config.settings import Settings
from goqueue.model.errors import DirectoryLocked, DiskFull, StorageFailed, Unavailable
from goqueue.model.settings import Fsync
from goqueue.server import server as server_module
from goqueue.server.server import ENDPOINTS_FILE, Server, broker_settings, run
from tests.support.loop import run as run_here


def settings_for(path: Path, **flags: str) -> Settings:
    doors = {
        "--http": "127.0.0.1:0",
        "--wire": "127.0.0.1:0",
        "--grpc": "off",
        "--metrics": "off",
        "--data-dir": str(path),
    }
    chosen = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return load(environ={}, flags={**doors, **chosen}, is_root=False)


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


async def free_again(path: Path) -> None:
    """Nobody holds the directory: a broker can be opened and closed."""
    await (await Broker.open(BrokerSettings(data_dir=str(path)))).close()


def test_the_doors_that_are_open_are_named_once_they_are(tmp_path: Path) -> None:
    async def go() -> None:
        server = await Server.start(settings_for(tmp_path))
        written = json.loads((tmp_path / ENDPOINTS_FILE).read_bytes())
        assert written == server.endpoints
        assert set(written) == {"http", "wire"}
        assert all(listens(address) for address in written.values())
        await server.stop()
        assert not (tmp_path / ENDPOINTS_FILE).exists()
        assert not any(listens(address) for address in written.values())
        await free_again(tmp_path)

    run_here(go())


def test_doors_are_opened_as_configured(tmp_path: Path) -> None:
    async def go() -> None:
        server = await Server.start(settings_for(tmp_path, wire="off", metrics="127.0.0.1:0"))
        try:
            assert set(server.endpoints) == {"http", "metrics"}
        finally:
            await server.stop()

    run_here(go())


def test_a_port_that_is_taken_is_told_and_nothing_stays_open(tmp_path: Path) -> None:
    async def go() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(Unavailable, match=f"the wire door cannot listen at 127.0.0.1:{port}.* with --wire$"):
                await Server.start(settings_for(tmp_path, wire=f"127.0.0.1:{port}"))
        assert not (tmp_path / ENDPOINTS_FILE).exists()
        await free_again(tmp_path)

    run_here(go())


def test_a_second_server_does_not_disturb_the_first(tmp_path: Path) -> None:
    async def go() -> None:
        first = await Server.start(settings_for(tmp_path))
        before = (tmp_path / ENDPOINTS_FILE).read_bytes()
        with pytest.raises(DirectoryLocked):
            await Server.start(settings_for(tmp_path))
        assert (tmp_path / ENDPOINTS_FILE).read_bytes() == before
        await first.stop()

    run_here(go())


def test_what_an_earlier_life_left_is_gone_before_recovery_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        (tmp_path / ENDPOINTS_FILE).write_text('{"http": "127.0.0.1:1"}')
        seen: list[bool] = []
        begin = Broker.__init__

        def recover(self: Broker, *args: object) -> None:
            seen.append((tmp_path / ENDPOINTS_FILE).exists())
            begin(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Broker, "__init__", recover)
        server = await Server.start(settings_for(tmp_path))
        await server.stop()
        assert seen == [False]

    run_here(go())


def test_a_start_that_cannot_say_where_it_listens_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        def refuse(*args: object) -> None:
            raise DiskFull("no space")

        monkeypatch.setattr(server_module, "replace_file", refuse)
        with pytest.raises(DiskFull):
            await Server.start(settings_for(tmp_path))
        monkeypatch.undo()
        await free_again(tmp_path)

    run_here(go())


def test_a_stopping_server_takes_no_new_work(tmp_path: Path) -> None:
    async def go() -> None:
        server = await Server.start(settings_for(tmp_path))
        await server.stop()
        assert server.broker.draining

    run_here(go())


def test_a_connection_that_asks_nothing_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    async def go() -> None:
        server = await Server.start(settings_for(tmp_path))
        streams = [await asyncio.open_connection(*server.endpoints[name].rsplit(":", 1)) for name in ("http", "wire")]
        await server.stop()
        for reader, writer in streams:
            try:
                await reader.read()
            except ConnectionResetError:
                pass
            writer.close()

    run_here(go())


def test_the_configuration_becomes_the_brokers_settings(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    found = broker_settings(settings)
    assert (found.data_dir, found.node_id) == (str(tmp_path), settings.node_id)
    assert found.partitions == settings.topic.partitions == 3
    assert found.topic.retention_hours == settings.topic.retention_hours == 168
    assert found.topic.fsync is settings.topic.fsync is Fsync.INTERVAL
    assert found.topic.segment_bytes == settings.topic.segment_bytes == 64 * 2**20
    assert found.logs.fsync_interval_ms == settings.topic.fsync_interval_ms == 1000
    assert found.logs.index_interval_bytes == settings.topic.index_interval_bytes == 4096


# --- the whole life of a process


@pytest.fixture
def thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals, thaw: None) -> None:
    doors: list[str] = []

    def announce(server: Server) -> None:
        doors.extend(server.endpoints.values())
        assert all(listens(address) for address in doors)
        os.kill(os.getpid(), number)

    assert run(settings_for(tmp_path), announce) is None
    assert doors
    assert not any(listens(address) for address in doors)
    assert not (tmp_path / ENDPOINTS_FILE).exists()


def test_a_disk_that_fails_ends_it_and_is_returned(tmp_path: Path, thaw: None) -> None:
    failure = StorageFailed("the disk is gone")
    assert run(settings_for(tmp_path), lambda server: server.broker.report_failure(failure)) is failure


def test_a_start_that_is_refused_is_raised(tmp_path: Path, thaw: None) -> None:
    def never(server: Server) -> None:
        raise AssertionError("nothing to announce")

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Unavailable):
        run(settings_for(tmp_path, http=f"127.0.0.1:{taken.getsockname()[1]}"), never)
