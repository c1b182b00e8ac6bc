"""`load`: defaults, then a file, then the environment, then flags; whoever speaks later decides.

What is written must be right wherever it is written, also where something later overrides it. Whether a feature is
built, and whether two values go together, is asked only of what counts in the end. The environment and who runs the
process come in as arguments; the file is the only part of the world this room looks at.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, Final

import msgspec

from goqueue.config.addresses import EVERYWHERE, LOOPBACK, Address
from goqueue.config.document import Document, Given, read_document
from goqueue.config.keys import BY_FLAG, BY_PATH, BY_VARIABLE, DOORS, KEYS
from goqueue.config.nearness import alike, nearest
from goqueue.config.problems import ConfigProblems, Problem
from goqueue.config.settings import ConsumerDefaults, HttpAccess, Listeners, ProducerDefaults, Settings, TopicDefaults

DEFAULT: Final = "default"
SET: Final = "--set"
_PREFIX: Final = "GOQUEUE_"
_NOT_SETTINGS: Final = {
    "GOQUEUE_ADDRESS",
    "GOQUEUE_BENCH_DIR",
    "GOQUEUE_CLI_CONFIG",
    "GOQUEUE_CLI_HINTS",
    "GOQUEUE_CODEC",
    "GOQUEUE_REQUIRE_COMPILED",
}
"""Variables of the build, the benchmarks and the clients: no concern of this room, and no reason to warn."""
_SHOWN: Final = 80
"""Letters of a wrong value that are repeated in a message."""


def load(
    *,
    file: str | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, str],
    assignments: Sequence[str] = (),
    is_root: bool,
) -> Settings:
    """What a broker is to do; ConfigProblems with all that is wrong when it cannot be told.

    `flags` has the texts of flags by their names, like `--http`; `assignments` those of `--set`, like `KEY=VALUE`.
    """
    document = Document((), frozenset(), ()) if file is None else read_document(file, environ)
    problems = list(document.problems)
    values = {key.path: key.kind.parse(key.default_for(is_root=is_root)) for key in KEYS}
    sources = dict.fromkeys(values, DEFAULT)
    texts: dict[str, str] = {}
    for given in chain(document.given, _from_environment(environ), _from_flags(flags, assignments, problems)):
        key = BY_PATH[given.path]
        sources[given.path], texts[given.path] = given.where, given.text
        try:
            values[given.path] = key.kind.parse(given.text)
        except ValueError:
            values.pop(given.path, None)
            problems.append(_refuse(given.path, given.text, given.where))
    for key in KEYS:
        if not key.built and key.path in values and values[key.path] != key.kind.parse(key.default):
            problems.append(_refuse(key.path, texts[key.path], sources[key.path]))
    if values.get("metrics.enabled") is False:
        values["metrics.listen"], sources["metrics.listen"] = None, sources["metrics.enabled"]
    _place_doors(values)
    problems += _clashes(values, sources)
    if problems:
        raise ConfigProblems(problems)
    warnings = (*_open_doors(values), *_unknown_variables(environ, document.names))
    return _build(values, warnings=warnings, sources=sources)


def _refuse(path: str, text: str, where: str) -> Problem:
    shown = repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
    return Problem(where, f"{path} is {shown}; {BY_PATH[path].wanted}")


# --- who says what


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    for name, key in BY_VARIABLE.items():
        if name in environ:
            yield Given(key.path, environ[name], f"environment {name}")


def _from_flags(flags: Mapping[str, str], assignments: Sequence[str], problems: list[Problem]) -> Iterator[Given]:
    found: dict[str, Given] = {}
    for flag, text in flags.items():
        if flag not in BY_FLAG:
            problems.append(Problem(f"flag {flag}", f"there is no such flag; the nearest is {nearest(flag, BY_FLAG)}"))
            continue
        path = BY_FLAG[flag].path
        found[path] = Given(path, text, f"flag {flag}")
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        where = f"flag {SET} {path}"
        if not equals:
            problems.append(Problem(f"flag {SET} {assignment}", "write KEY=VALUE"))
        elif path not in BY_PATH:
            problems.append(Problem(where, f"there is no key {path}; the nearest is {nearest(path, BY_PATH)}"))
        elif path in found:
            problems.append(Problem(where, f"{path} is set already, by {found[path].where}; keep one of them"))
        else:
            found[path] = Given(path, text, where)
    yield from found.values()


def _unknown_variables(environ: Mapping[str, str], referred: frozenset[str]) -> Iterator[str]:
    """Only a warning: container platforms put names of ours into the environment for reasons of their own."""
    known = BY_VARIABLE.keys() | _NOT_SETTINGS | referred
    endings = [name.removeprefix(_PREFIX) for name in BY_VARIABLE]
    strangers = []
    for name in sorted(name for name in environ if name.startswith(_PREFIX) and name not in known):
        meant = alike(name.removeprefix(_PREFIX), endings)
        if meant is None:
            strangers.append(name)
        else:
            yield f"the variable {name} sets nothing; {_PREFIX}{meant} would"
    if strangers:
        yield f"these variables set nothing, GoQueue has none of these names: {', '.join(strangers)}"


# --- what goes together


def _place_doors(values: dict[str, Any]) -> None:
    """An address that names no host gets the one it means."""
    host = EVERYWHERE if values.get("broker.bindAll") else LOOPBACK
    for path, address in _addresses(values):
        if not address.host:
            values[path] = msgspec.structs.replace(address, host=host)


def _addresses(values: Mapping[str, Any]) -> list[tuple[str, Address]]:
    return [(key.path, values[key.path]) for key in DOORS if values.get(key.path) is not None]


def _clashes(values: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[Problem]:
    interval, segment = values.get("storage.indexIntervalBytes"), values.get("storage.segmentSize")
    if interval is not None and segment is not None and interval > segment:
        yield Problem(
            _decisive(sources, "storage.indexIntervalBytes", "storage.segmentSize"),
            f"storage.indexIntervalBytes is {interval} and storage.segmentSize {segment}; "
            "the interval must not be larger than a segment",
        )
    heartbeat, session = values.get("consumer.heartbeatInterval"), values.get("consumer.sessionTimeout")
    if heartbeat is not None and session is not None and heartbeat >= session:
        yield Problem(
            _decisive(sources, "consumer.heartbeatInterval", "consumer.sessionTimeout"),
            f"consumer.heartbeatInterval is {_shown('consumer.heartbeatInterval', heartbeat)} and "
            f"consumer.sessionTimeout {_shown('consumer.sessionTimeout', session)}; a heartbeat must come before the "
            "session times out, best several of them",
        )
    for (one, here), (other, there) in combinations(_addresses(values), 2):
        if here.collides(there):
            yield Problem(
                _decisive(sources, other, one),
                f"{one} is {here} and {other} {there}; give each a port of its own, or 0 for a free one",
            )


def _shown(path: str, value: Any) -> str:
    return BY_PATH[path].kind.show(value)


def _decisive(sources: Mapping[str, str], *paths: str) -> str:
    """Where to change one of these: the first that somebody set."""
    return next((sources[path] for path in paths if sources[path] != DEFAULT), DEFAULT)


def _open_doors(values: Mapping[str, Any]) -> Iterator[str]:
    wide = [f"{path} on {address}" for path, address in _addresses(values) if not address.is_local]
    if wide:
        yield (
            f"OPEN TO THE NETWORK, WITHOUT AUTHENTICATION: {', '.join(wide)}. Whoever reaches these addresses may "
            f"read, write and delete everything; listen on {LOOPBACK}, or let only those come near whom you trust"
        )


def _build(values: Mapping[str, Any], *, warnings: tuple[str, ...], sources: dict[str, str]) -> Settings:
    parts: dict[str, dict[str, Any]] = {}
    for key in KEYS:
        if key.field is not None:
            part, _, name = key.field.rpartition(".")
            parts.setdefault(part, {})[name] = values[key.path]
    return Settings(
        listeners=Listeners(**parts["listeners"]),
        http=HttpAccess(**parts["http"]),
        topic=TopicDefaults(**parts["topic"]),
        producer=ProducerDefaults(**parts["producer"]),
        consumer=ConsumerDefaults(**parts["consumer"]),
        warnings=warnings,
        sources=sources,
        **parts[""],
    )
