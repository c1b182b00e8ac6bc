"""The clocks, in the unit everything here counts in."""

import time


def wall_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """A clock that only goes forward, whatever happens to the wall's; it has no meaning on another machine."""
    return time.monotonic_ns() // 1_000_000
