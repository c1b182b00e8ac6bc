"""A broker with its doors inside this process, on a disk of the test's choosing; its files as a kill leaves them."""

import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from goqueue.broker.broker import Broker
from goqueue.config.loading import load
from goqueue.config.settings import Settings
from goqueue.io.disk import Disk
from goqueue.server.server import Server
from goqueue.storage.store import METADATA_LOG


def settings_for(data_dir: Path, **flags: str) -> Settings:
    """Free ports of this machine, and no metrics."""
    doors = {"--http": "127.0.0.1:0", "--wire": "127.0.0.1:0", "--grpc": "off", "--metrics": "off"}
    doors["--data-dir"] = str(data_dir)
    chosen = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
    return load(environ={}, flags={**doors, **chosen}, is_root=False)


@asynccontextmanager
async def running_server(data_dir: Path, disk: Disk | None = None, /, **flags: str) -> AsyncIterator[Server]:
    """Stopped at the end, in order, also when its disk failed."""
    server = await Server.start(settings_for(data_dir, **flags), disk=disk)
    try:
        yield server
    finally:
        await server.stop()


def copy_as_killed(broker: Broker, target: Path) -> None:
    """The files of a broker that runs, as kill -9 would leave them at this moment. On the broker's own thread."""
    logs = [partition.log for topic in broker.topics.by_id.values() for partition in topic.partitions]
    with ExitStack() as quiet:
        for log in (*logs, broker.store.open_log(METADATA_LOG, area="meta")):
            quiet.enter_context(log.settled())  # no sync thread is between two files
        shutil.copytree(broker.store.data_dir, target)
