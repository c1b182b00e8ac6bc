"""The twins without an event loop: they are what their sources make them, and how one is made."""

import inspect
from textwrap import dedent

import pytest

from goqueue.client.administration import AsyncAdministration
from goqueue.client.sync.administration import Administration
from tests.support.without_async import COMMAND, TWINS, make_twin, source_of, twin_of


@pytest.mark.parametrize("module", TWINS)
def test_a_twin_is_up_to_date(module: str) -> None:
    made = make_twin(module, source_of(module).read_text(encoding="utf-8"))
    assert twin_of(module).read_text(encoding="utf-8") == made, f"run {COMMAND}"


def test_the_twin_of_administration_has_the_same_methods_and_nothing_to_wait_for() -> None:
    ours, theirs = vars(Administration), vars(AsyncAdministration)
    assert [name for name in ours if not name.startswith("__")] == [
        name for name in theirs if not name.startswith("__")
    ]
    for name, method in inspect.getmembers(Administration, inspect.isfunction):
        assert not inspect.iscoroutinefunction(method)
        assert inspect.signature(method) == inspect.signature(getattr(AsyncAdministration, name))


# --- how one is made


def twin(source: str) -> str:
    """Without its docstring."""
    return make_twin("reader", dedent(source), twins=("reader", "administration")).split('"""\n', 1)[1].strip()


def test_whatever_waits_does_so_no_more() -> None:
    made = twin(
        """
        class AsyncReader:
            async def __aenter__(self):
                return await self.open()

            async def __aexit__(self, *error):
                async with self.lock:
                    await self.close()

            def __aiter__(self):
                return self

            async def __anext__(self):
                async for message in self.more:
                    return [await each.get() async for each in message] or await anext(aiter(self))
                raise StopAsyncIteration
        """
    )
    assert made == dedent(
        """\
        class Reader:
            def __enter__(self):
                return self.open()

            def __exit__(self, *error):
                with self.lock:
                    self.close()

            def __iter__(self):
                return self

            def __next__(self):
                for message in self.more:
                    return [each.get() for each in message] or next(iter(self))
                raise StopIteration"""
    )


def test_names_of_what_waits_are_turned_and_imports_follow() -> None:
    made = twin(
        """
        from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
        from contextlib import aclosing, asynccontextmanager
        from goqueue.client.administration import AsyncAdministration

        @asynccontextmanager
        async def opened(close: Callable[[], Awaitable[None]]) -> AsyncIterator[AsyncAdministration]:
            async with aclosing(close):
                yield AsyncAdministration()

        async def walk() -> Iterator[int]:
            return iter(())
        """
    )
    assert made == dedent(
        """\
        from collections.abc import Callable, Iterator
        from contextlib import closing, contextmanager

        from goqueue.client.sync.administration import Administration


        @contextmanager
        def opened(close: Callable[[], None]) -> Iterator[Administration]:
            with closing(close):
                yield Administration()


        def walk() -> Iterator[int]:
            return iter(())"""
    )


def test_docstrings_are_turned_with_the_rest() -> None:
    made = twin(
        '''
        class AsyncReader:
            """As an AsyncIterator: `async for message in reader`, or `await reader.read()`."""

            async def read(self): ...
        '''
    )
    assert '"""As an Iterator: `for message in reader`, or `reader.read()`."""' in made


def test_what_has_nothing_asynchronous_is_imported_and_not_made_twice() -> None:
    made = twin(
        '''
        """What is read."""

        from typing import Final

        LIMIT: Final = 5
        """Of messages."""
        Unused = int

        class AsyncReader:
            async def read(self):
                return cut(LIMIT)

        # --- cutting

        def cut(count):
            return count

        def make():
            """Leans on what is made twice."""
            return open_reader()

        def open_reader():
            return AsyncReader()
        '''
    )
    assert made == dedent(
        '''\
        from goqueue.client.reader import LIMIT, cut


        class Reader:
            def read(self):
                return cut(LIMIT)


        def make():
            """Leans on what is made twice."""
            return open_reader()


        def open_reader():
            return Reader()'''
    )


def test_a_twin_says_that_it_was_made_and_from_what() -> None:
    made = make_twin("reader", "async def read(): ...\n")
    assert made.startswith('"""The twin of `goqueue.client.reader` ')
    assert COMMAND in made


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import asyncio\n\nasync def read():\n    await asyncio.sleep(1)\n", "asyncio"),
        ("from asyncio import Lock\n\nasync def read():\n    return Lock()\n", "asyncio"),
        ("from typing import Coroutine\n\nasync def read() -> Coroutine[None, None, int]: ...\n", "Coroutine"),
        ("async def read():\n    await(other())\n", "Await"),
    ],
)
def test_what_no_word_turns_is_refused(source: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"still be asynchronous .*{what}"):
        make_twin("reader", source)
