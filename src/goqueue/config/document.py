"""A configuration file: which keys it sets, to which text, on which line, and everything that is wrong with it.

Values are taken as they are written, not as YAML would understand them: `off` is a word here and `010` ten. A key is
looked for only below known sections, so no file, however it refers to itself, is walked for long.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import yaml

from goqueue.config.keys import BY_PATH, SECTIONS
from goqueue.config.nearness import nearest
from goqueue.config.problems import Problem
from goqueue.config.substitution import substitute
from goqueue.model import limits

_LARGEST_FILE: Final = limits.MIB
"""Whoever names a log or a device by mistake should hear of it at once."""
_NULL: Final = "tag:yaml.org,2002:null"
_PLAIN_TAGS: Final = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "timestamp", "value")}


class Given(msgspec.Struct, frozen=True):
    """A key that somebody set: to what, and where that is written."""

    path: str
    text: str
    where: str


class Document(msgspec.Struct, frozen=True):
    given: tuple[Given, ...]
    names: frozenset[str]
    """The environment variables its values refer to."""
    problems: tuple[Problem, ...]


def read_document(file: str, environ: Mapping[str, str]) -> Document:
    """Never raises for what the file is: an unreadable one is a problem like any other."""
    name = file or repr(file)
    try:
        with open(file, "rb") as opened:
            data = opened.read(_LARGEST_FILE + 1)
    except OSError as error:
        return _unreadable(Problem(name, f"cannot be read: {error.strerror}"))
    except ValueError as error:
        return _unreadable(Problem(name, f"cannot be read: {error}"))
    if len(data) > _LARGEST_FILE:
        return _unreadable(Problem(name, f"is no configuration: it has more than {_LARGEST_FILE} bytes"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(Problem(name, f"is not UTF-8 at byte {error.start}"))
    return _Reading(name, environ).read(text)


def _unreadable(problem: Problem) -> Document:
    return Document((), frozenset(), (problem,))


class _Reading:
    """One file being read; problems collect beside what is found."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._name = name
        self._environ = environ
        self._given: dict[str, Given] = {}
        self._names: set[str] = set()
        self._problems: list[Problem] = []

    def read(self, text: str) -> Document:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = self._name if mark is None else f"{self._name}:{mark.line + 1}"
            return _unreadable(Problem(where, f"is no YAML: {error.problem or error.context}"))
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            return _unreadable(Problem(f"{self._name}:{line}", f"is no YAML: {error.reason}"))
        except RecursionError:
            return _unreadable(Problem(self._name, "is no configuration: it is nested too deeply"))
        if isinstance(root, yaml.MappingNode):
            self._walk(root, "")
        elif root is not None and root.tag != _NULL:
            self._complain(root, f"is no configuration: it must begin with a section, like {min(SECTIONS)}:")
        return Document(tuple(self._given.values()), frozenset(self._names), tuple(self._problems))

    def _walk(self, section: yaml.MappingNode, prefix: str) -> None:
        for name, node in section.value:
            if not isinstance(name, yaml.ScalarNode):
                self._complain(name, "is no name of a key")
                continue
            path = f"{prefix}{name.value}"
            if path in BY_PATH:
                self._take(path, name, node)
            elif path not in SECTIONS:
                known = SECTIONS if isinstance(node, yaml.MappingNode) else BY_PATH
                self._complain(name, f"there is no key {path}; the nearest is {nearest(path, known)}")
            elif isinstance(node, yaml.MappingNode):
                self._walk(node, f"{path}.")
            elif node.tag != _NULL:
                self._complain(name, f"{path} has no value of its own; write its keys below it, {_below(path)}")

    def _take(self, path: str, name: yaml.ScalarNode, node: yaml.Node) -> None:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in {_NULL, *_PLAIN_TAGS}:
            self._complain(name, f"{path} must be a single value; {BY_PATH[path].wanted}")
        elif node.tag == _NULL:
            self._complain(name, f"{path} has no value; leave it out, or give it one: {BY_PATH[path].wanted}")
        elif path in self._given:
            self._complain(name, f"{path} is there twice, first at {self._given[path].where}; keep one of them")
        else:
            found = substitute(node.value, self._environ)
            self._names |= found.names
            for wrong in found.wrong:
                self._complain(name, f"{path}: {wrong}")
            if not found.wrong:
                self._given[path] = Given(path, found.text, self._where(name))

    def _complain(self, node: yaml.Node, text: str) -> None:
        self._problems.append(Problem(self._where(node), text))

    def _where(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"


def _below(section: str) -> str:
    """Two names, as an example."""
    return ", ".join(sorted(_names_below(section))[:2])


def _names_below(section: str) -> Iterator[str]:
    return (path.removeprefix(f"{section}.").partition(".")[0] for path in BY_PATH if path.startswith(f"{section}."))
