"""How the process keeps memory that it needs again at once. For a process of our own only: never done when embedded."""

from typing import Final

from goqueue.model import limits

_LARGEST: Final = 31 * limits.MIB
"""Just below the size up to which glibc adapts."""


def keep_freed_memory() -> None:
    """Have the allocator keep what is freed at the end of its heap, up to 62 MiB, rather than give it back at once.

    A frame of gRPC is copied a few times on its way, each time into a new buffer, and with every frame glibc gave that
    memory back and took it anew: some 600 page faults, which for 500 messages in a block was two thirds of the cost.
    By itself glibc keeps twice the largest buffer that it ever returned to the system (mallopt(3), the dynamic mmap
    threshold), so after the first request of 31 MiB a broker was like this anyway; here it is so from the beginning.

    No page of the buffer is ever touched. Whoever sets MALLOC_TRIM_THRESHOLD_ has the last word, and other allocators
    do not mind.
    """
    buffer = bytes(_LARGEST)
    del buffer
