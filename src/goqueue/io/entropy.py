"""The system's own source of chance."""

import secrets


def system_entropy(size: int) -> int:
    return int.from_bytes(secrets.token_bytes(size), "big")
