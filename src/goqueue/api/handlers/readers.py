"""Named readers: put, get, list, delete."""

from typing import Any

from msgspec import UNSET

from goqueue.api.handlers.showing import fit_page
from goqueue.api.service import Service
from goqueue.metadata.readers import Reader
from goqueue.model.times import show_time
from goqueue.wire import shapes


async def put_reader(service: Service, request: shapes.PutReader, name: str) -> shapes.ReaderPut:
    offsets = {
        topic: {int(number): offset for number, offset in numbers.items()} for topic, numbers in request.offsets.items()
    }
    put = await service.broker.readers.put(name, offsets, if_absent=request.if_absent)
    return shapes.ReaderPut(created=put.created, **_fields(service, put.reader))


async def get_reader(service: Service, request: shapes.Nothing, name: str) -> shapes.ShownReader:
    return shapes.ShownReader(**_fields(service, await service.broker.readers.get(name)))


async def list_readers(service: Service, request: shapes.ListReaders) -> shapes.ReaderList:
    """A page is cut where it would be too large. `next` is a name, so it outlives the reader that has it."""
    begin = "" if request.next is UNSET else request.next
    readers = [reader for reader in await service.broker.readers.list() if reader.name >= begin]
    shown = (shapes.ShownReader(**_fields(service, reader)) for reader in readers[: request.limit])
    page = await fit_page(service.turns, shown)
    return shapes.ReaderList(readers=page, next=readers[len(page)].name if len(page) < len(readers) else UNSET)


async def delete_reader(service: Service, request: shapes.Nothing, name: str) -> shapes.ReaderDeleted:
    await service.broker.readers.delete(name)
    return shapes.ReaderDeleted(deleted=True, name=name)


def _fields(service: Service, reader: Reader) -> dict[str, Any]:
    return {
        "name": reader.name,
        "offsets": {
            topic: {str(number): offset for number, offset in numbers.items()}
            for topic, numbers in service.broker.readers.by_topic(reader).items()
        },
        "created_at": show_time(reader.created_ms),
        "changed_at": show_time(reader.changed_ms),
    }
