"""What can be simulated: one room of the product each, run with a seeded source of chance and a trace."""

from collections.abc import Callable
from random import Random
from typing import Final

from sim.rooms.groups import run as run_groups
from sim.rooms.log import run as run_log
from sim.rooms.transactions import run as run_transactions
from sim.trace import Trace

ROOMS: Final[dict[str, Callable[[Random, Trace], None]]] = {
    "groups": run_groups,
    "log": run_log,
    "transactions": run_transactions,
}
