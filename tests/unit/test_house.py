"""The house rules no other tool checks: cores without a world, rooms with a sign on the door.

The import direction between rooms is import-linter's (see pyproject.toml).
"""

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

import goqueue

SOURCE = Path(goqueue.__file__).parent
ROOMS = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__")
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))

# Rooms whose modules decide and never touch the world: time comes in as an argument, bytes through a port.
SANS_IO = {
    "base", "model", "codec", "wire", "storage", "machine", "metadata", "producers", "groups", "delivery",
    "transactions", "jobs",
}  # fmt: skip
THE_WORLD = {
    "asyncio", "concurrent", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors",
    "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
# Only a driver may run a core's decisions against the world. Anything else needs a reason here.
ALLOWED = {
    "codec/__init__.py": {"os": "the one switch point between the two codecs reads GOQUEUE_CODEC"},
}
# A lock guards memory that a driver's threads share; it starts nothing and waits for nobody's clock.
LOCKS = {"Lock", "RLock"}
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def imported(tree: ast.Module) -> Iterator[str]:
    """The top-level names of every absolute import, wherever it stands in the module; locks pass."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "threading" and {alias.name for alias in node.names} <= LOCKS:
                continue
            yield node.module.partition(".")[0]


def parse(module: str) -> ast.Module:
    return ast.parse((SOURCE / module).read_text(encoding="utf-8"), filename=module)


@pytest.mark.parametrize(
    "module",
    [name for name in MODULES if name.partition("/")[0] in SANS_IO and not name.endswith("/driver.py")],
)
def test_a_core_imports_nothing_of_the_world(module: str) -> None:
    found = set(imported(parse(module))) & THE_WORLD - set(ALLOWED.get(module, {}))
    assert not found, f"{module} imports {sorted(found)}: take it as an argument, a port, or move it to driver.py"


def test_the_walk_over_imports_sees_every_form() -> None:
    tree = ast.parse("import os.path\nfrom time import sleep\ndef f():\n    import random as r\nfrom . import socket\n")
    assert set(imported(tree)) == {"os", "time", "random"}
    assert set(imported(ast.parse("from threading import Lock, RLock"))) == set()
    assert set(imported(ast.parse("from threading import Lock, Thread"))) == {"threading"}


def test_every_exception_to_the_rule_is_still_needed() -> None:
    for module, names in ALLOWED.items():
        assert set(names) <= set(imported(parse(module))), f"{module} no longer needs its exception"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(parse(module)), f"{module} has no docstring"


def test_no_module_is_named_after_nothing() -> None:
    assert not [name for name in MODULES if NO_NAMES & set(Path(name).with_suffix("").parts)]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_a_package(room: str) -> None:
    assert (SOURCE / room / "__init__.py").exists()


def test_the_installed_version_is_the_source_version() -> None:
    assert importlib.metadata.version("goqueue") == goqueue.__version__


# --- deadlines of tests

TESTS = Path(__file__).parents[1]
TEST_MODULES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py"))
THE_PATIENT = {"support/patience.py"}
WAITS = {"join": 0, "result": 0, "timeout": 0, "wait": 0, "wait_for": 1}
"""Methods that are given a time as a bare number, and at which place: `thread.join(5)`, `asyncio.wait_for(task, 5)`."""
MOVED = {"calls", "rig", "script", "stage"}
"""What moves its own time when it is told to wait."""
LONG_FORM_S = 900
"""What is marked `long` has a time of its own, and so have the programs it runs."""
CLOCKS = {"monotonic", "perf_counter", "time"}
PRODUCT_TIMES = {"extend_handles", "transaction", "use"}
"""What a test asks the broker to do in so much time, not how long the test waits."""
PATIENCE = ("PATIENCE", "DEADLINE")
SHORT_S = 1
"""Below it a number is a time that is meant to pass."""


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _owner(node: ast.AST) -> str:
    """The name in front of the dot of what is called."""
    called = node.func if isinstance(node, ast.Call) else None
    return getattr(called.value, "id", "") if isinstance(called, ast.Attribute) else ""


def _is_long(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) and SHORT_S <= value < LONG_FORM_S


def _means_patience(node: ast.AST) -> bool:
    name = getattr(node, "id", "")
    return name != "PATIENCE_S" and any(word in name for word in PATIENCE)


def deadlines(tree: ast.Module) -> Iterator[int]:
    """The lines at which something is given a time of its own to come about."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=args, keywords=keywords) if (name := _called(node)) not in PRODUCT_TIMES:
                given = [each.value for each in keywords if each.arg in ("timeout", "timeout_s")]
                at = WAITS.get(name)
                if at is not None and len(args) == at + 1 and isinstance(node.func, ast.Attribute):
                    given.append(args[at])
                if any(map(_is_long, given)) and _owner(node) not in MOVED:
                    yield node.lineno
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                if _called(left) in CLOCKS and (_is_long(right) or _means_patience(right)):
                    yield node.lineno
            case ast.Compare(left=ast.BinOp(op=ast.Sub()) as passed, ops=[ast.Lt() | ast.LtE()]):
                if any(_called(each) in CLOCKS for each in ast.walk(passed)):
                    yield node.lineno
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant())
                | ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant())
            ):
                if any(word in name for word in PATIENCE):
                    yield node.lineno


@pytest.mark.parametrize("module", [name for name in TEST_MODULES if name not in THE_PATIENT])
def test_no_test_has_a_deadline_of_its_own(module: str) -> None:
    found = [*deadlines(ast.parse((TESTS / module).read_text(encoding="utf-8"), filename=module))]
    assert not found, f"{module} has deadlines in lines {found}: wait with tests/support/patience.py"


@pytest.mark.parametrize(
    "text",
    [
        "asyncio.timeout(20)",
        "process.communicate(timeout=30)",
        "consumer.poll(timeout=5.0)",
        "thread.join(2)",
        "deadline = time.monotonic() + 10",
        "deadline = monotonic() + DEADLINE",
        "assert time.perf_counter() - begun < 5",
        "assert loop.time() - begun < limits.WAIT_S / 2",
        "_PATIENCE_S: Final = 60.0",
        "DEADLINE_S = 60",
    ],
)
def test_a_deadline_is_seen_in_every_form(text: str) -> None:
    assert [*deadlines(ast.parse(text))] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "asyncio.timeout(PATIENCE_S)",
        "asyncio.timeout(0.02)",
        "', '.join(names)",
        "consumer.poll(timeout=0)",
        "deadline = time.monotonic() + PATIENCE_S",
        "admin.extend_handles(handles, timeout=3600)",
        "assert time.time() >= begun + 1",
    ],
)
def test_what_is_no_deadline_passes(text: str) -> None:
    assert [*deadlines(ast.parse(text))] == []
