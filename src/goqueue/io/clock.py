"""The wall clock, in the unit everything here counts in."""

import time


def wall_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
