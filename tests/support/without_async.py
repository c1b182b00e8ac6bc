"""The synchronous twins of the client's asynchronous modules, made from their text.

    python -m tests.support.without_async

writes every one of them anew; a test says when that was forgotten. To give a module a twin, name it in `TWINS`.

What a module has at its top and has nothing asynchronous in it, nor leans on something that has, is not made twice: the
twin imports it. Docstrings are text like the rest: `await` in an example goes too. What cannot be turned by words, such
as a use of asyncio, is refused; it belongs in a module without a twin.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import goqueue.client

TWINS: Final = ("administration",)
"""Modules of `goqueue.client` that have a twin of the same name in `goqueue.client.sync`."""

CLIENT: Final = Path(goqueue.client.__file__).parent
COMMAND: Final = "python -m tests.support.without_async"
_WORDS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\basync (?=(?:def|with|for)\b)", ""),
        (r"\bawait ", ""),
        (r"\bAsync(?=[A-Z])", ""),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\ba(iter|next)\(", r"\1("),
        (r"\basync(contextmanager)\b", r"\1"),
        (r"\ba(closing)\b", r"\1"),
        (r"\bAwaitable\[([^][]*)\]", r"\1"),
    )
)
_LEFT_OVER: Final = {"asyncio", "Awaitable", "Coroutine"}
"""Names that mean nothing without an event loop."""


def source_of(module: str) -> Path:
    return CLIENT / f"{module}.py"


def twin_of(module: str) -> Path:
    return CLIENT / "sync" / f"{module}.py"


def make_twin(module: str, source: str, *, twins: tuple[str, ...] = TWINS) -> str:
    """The text of the twin of a module with this text."""
    home = f"goqueue.client.{module}"
    tree = ast.parse(source)
    shared = _shared(tree, source, twins)
    lines = source.splitlines(keepends=True)
    parts = [
        f'"""The twin of `{home}` for programs without an event loop, made from its text: do not edit.\n\n'
        f'Change that one, then run `{COMMAND}`.\n"""\n',
        f"from {home} import {', '.join(sorted(shared))}\n" if shared else "",
    ]
    dropped = ast.get_docstring(tree) is not None
    end = tree.body[0].end_lineno or 0 if dropped else 0
    for node in tree.body[1:] if dropped else tree.body:
        begin, end = end, node.end_lineno or 0
        if not _is_text(node):  # text stands below what it is about, and goes where that goes
            dropped = bool(_names_of(node)) and _names_of(node) <= shared
        if not dropped:
            parts.append(_turn("".join(lines[begin:end]), twins))
    made = _tidy("".join(parts), twin_of(module))
    _check(made, home)
    return made


def _turn(text: str, twins: tuple[str, ...]) -> str:
    for pattern, replacement in _WORDS:
        text = pattern.sub(replacement, text)
    return re.sub(rf"\bgoqueue\.client\.({'|'.join(twins)})\b", r"goqueue.client.sync.\1", text)


def _shared(tree: ast.Module, source: str, twins: tuple[str, ...]) -> set[str]:
    """Names of definitions that are the same for both."""
    definitions = [(node, _names_of(node)) for node in tree.body if _names_of(node)]
    own = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and _turn(f"{node.module}", twins) != node.module
        for alias in node.names
    }
    for node, names in definitions:
        text = ast.get_source_segment(source, node) or ""
        if _turn(text, twins) != text:
            own |= names
    while leaning := [names for node, names in definitions if not names <= own and _used(node) & own]:
        own = own.union(*leaning)
    return {name for _, names in definitions for name in names} - own


def _names_of(node: ast.stmt) -> set[str]:
    """What a definition at the top of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _used(node: ast.stmt) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _tidy(text: str, path: Path) -> str:
    """Without imports that nobody needs any more, the others in order, formatted as the house does."""
    for command in (("check", "--select", "F401,I", "--fix-only", "--quiet"), ("format", "--quiet")):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    return text


def _check(made: str, home: str) -> None:
    found = [f"line {line}: {what}" for line, what in sorted(_left_over(ast.parse(made)))]
    if found:
        raise ValueError(f"the twin of {home} would still be asynchronous ({'; '.join(found)})")


def _left_over(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
                yield node.lineno, type(node).__name__
            case ast.comprehension(is_async=1):
                yield node.target.lineno, "async comprehension"
            case (
                ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.ImportFrom(module=str(name))
            ) if name.partition(".")[0] in _LEFT_OVER:
                yield node.lineno, name


def main() -> None:
    for module in TWINS:
        made = make_twin(module, source_of(module).read_text(encoding="utf-8"))
        twin_of(module).write_text(made, encoding="utf-8")
        print(f"wrote goqueue.client.sync.{module}")


if __name__ == "__main__":
    main()
