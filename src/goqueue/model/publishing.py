"""What a publisher asks for and what it gets: acks and durability, by name and by the byte the wire carries."""

from enum import IntEnum


class Acks(IntEnum):
    """When the answer to a publish is sent: without waiting, once the leader has it, once every replica has fsynced."""

    NONE = 0
    LEADER = 1
    ALL = 2


class Durability(IntEnum):
    """What a published message had reached when the answer was sent."""

    NONE = 0
    WRITTEN = 1
    REPLICATED = 2
    DURABLE = 3
