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
