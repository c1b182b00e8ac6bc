"""Nothing but a `Caller` asks the library about a call.

Whoever asks too late ends the process, and what is too late depends on when a client leaves: no test of a handler can
be relied on to see it. So it is a rule about the source. A context is given to whoever makes a `Caller` of it, and that
is all anybody does with one.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from grpc_reflection.v1alpha import reflection

from goqueue.api import grpc as door

HERE = Path(door.__file__).parent
MODULES = sorted(path.relative_to(HERE).as_posix() for path in HERE.rglob("*.py") if path.parent.name != "generated")
THE_ONE = "caller.py"
TYPE, NAME = "Context", "context"
TAKERS = {"Caller", "caller", "peer_of"}
"""What a context may be given to."""
REGISTERED = "_rpc_method_handler"
PASSED_ON = {"_both_ways"}
"""Functions that register what they are given."""


def named(node: ast.AST) -> str:
    """The last part of a name with dots, or nothing."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_context(argument: ast.arg) -> bool:
    annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
    return argument.arg == NAME or TYPE in annotation


def registered(trees: dict[str, ast.Module]) -> set[str]:
    """The names of the functions that the library calls with a request and a context."""
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (named(node.func).endswith(REGISTERED) or named(node.func) in PASSED_ON):
                found.add(named(node.args[0]))
    return found


def touches(tree: ast.Module, handlers: set[str]) -> Iterator[tuple[int, str]]:
    """The lines that do anything with a context but hand it to a taker, and what they do."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "ServicerContext":
            yield node.lineno, "names the library's context"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            given = [*node.args.posonlyargs, *node.args.args]
            if getattr(node, "name", "") in handlers and len(given) > 1 and given[-1].arg != NAME:
                yield node.lineno, f"is a handler whose context is not called {NAME}"
            for argument in [*given, *node.args.kwonlyargs]:
                if is_context(argument) and argument.arg != NAME:
                    yield node.lineno, f"calls a context {argument.arg}, not {NAME}"
        if isinstance(node, ast.Name) and node.id == NAME:
            parent = parents[node]
            if not (isinstance(parent, ast.Call) and node in parent.args and named(parent.func) in TAKERS):
                yield node.lineno, "does something with a context but make a Caller of it"


def trees() -> dict[str, ast.Module]:
    return {name: ast.parse((HERE / name).read_text(encoding="utf-8"), filename=name) for name in MODULES}


@pytest.mark.parametrize("module", [name for name in MODULES if name != THE_ONE])
def test_nobody_but_a_caller_touches_the_library_s_context(module: str) -> None:
    parsed = trees()
    found = [*touches(parsed[module], registered(parsed))]
    assert not found, f"{module}: {found}; only {THE_ONE} may, inside the handler"


def test_the_handlers_of_the_door_are_known() -> None:
    assert registered(trees()) == {"answer", "serve", "_check", "_watch", "ServerReflectionInfo"}


@pytest.mark.parametrize(
    "text",
    [
        "async def f(body, context): return context.peer()",
        "async def f(body, context): self.context = context",
        "async def f(body, context): later(context)",
        "async def f(body, context): return lambda: held.caller(context, context.peer())",
        "async def f(body, context): (peer := context.peer)",
        "async def f(body, context): held.caller(getattr(context, 'peer')())",
        "def f(given: Context): given.peer()",
        "def f(given: 'grpc.aio.ServicerContext[int, int]'): given.peer()",
        "Context = grpc.aio.ServicerContext",
        "async def answer(body, given): given.peer()",
    ],
)
def test_whatever_is_done_with_a_context_is_seen(text: str) -> None:
    assert [*touches(ast.parse(text), {"answer"})]


@pytest.mark.parametrize(
    "text",
    [
        "async def f(body, context: Context):\n    async with self._held.caller(context) as caller: pass",
        "def f(context: Context): return Caller(context, budget_of(peer_of(context)))",
    ],
)
def test_making_a_caller_of_it_is_no_offence(text: str) -> None:
    assert [*touches(ast.parse(text), {"answer"})] == []


def test_the_library_s_own_service_asks_nothing_of_its_context() -> None:
    """It is given one by the library, not by us."""
    serve = reflection.aio.ReflectionServicer.ServerReflectionInfo
    (function,) = ast.parse(dedent(inspect.getsource(serve))).body
    assert isinstance(function, ast.AsyncFunctionDef)
    *_, context = function.args.args
    assert [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == context.arg] == []
