"""Configuration files: what they set, and what is wrong with them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from goqueue.config.document import Document, Given, read_document

Read = Callable[..., Document]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    monkeypatch.chdir(tmp_path)

    def write_and_read(text: str | bytes, **environ: str) -> Document:
        Path("c.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_document("c.yaml", environ)

    return write_and_read


def lines(document: Document) -> list[str]:
    return [str(problem) for problem in document.problems]


def texts(document: Document) -> dict[str, str]:
    assert not document.problems
    return {given.path: given.text for given in document.given}


def test_nested_keys_are_found_with_their_lines(read: Read) -> None:
    document = read("# a comment\nbroker:\n  nodeId: a\n\n  listeners:\n    http: ':80'\nlogging: {level: debug}\n")
    assert document.given == (
        Given("broker.nodeId", "a", "c.yaml:3"),
        Given("broker.listeners.http", ":80", "c.yaml:6"),
        Given("logging.level", "debug", "c.yaml:7"),
    )
    assert not document.problems


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "broker:\nstorage:\n  # segmentSize: 1\n", "{}", "~"])
def test_a_file_may_set_nothing(read: Read, text: str) -> None:
    assert read(text) == Document((), frozenset(), ())


@pytest.mark.parametrize("value", ["off", "010", "1:30", "0x10", "1e3", "yes", "2026-01-31", "=", '"off"', "'1'"])
def test_a_value_is_the_text_that_was_written(read: Read, value: str) -> None:
    assert texts(read(f"broker:\n  nodeId: {value}\n")) == {"broker.nodeId": value.strip("'\"")}


def test_a_key_may_be_written_in_one_word(read: Read) -> None:
    document = read("storage.fsync.mode: every\nstorage.fsync:\n  intervalMs: 5\n")
    assert texts(document) == {"storage.fsync.mode": "every", "storage.fsync.intervalMs": "5"}


def test_an_alias_stands_for_its_anchor(read: Read) -> None:
    document = read("broker:\n  nodeId: &it a\n  dataDir: *it\n")
    assert texts(document) == {"broker.nodeId": "a", "broker.dataDir": "a"}


def test_variables_are_filled_in_and_told(read: Read) -> None:
    document = read("broker:\n  nodeId: ${NODE:node-1}\n  dataDir: ${PLACE}/x\n", PLACE="a: b")
    assert texts(document) == {"broker.nodeId": "node-1", "broker.dataDir": "a: b/x"}
    assert document.names == {"NODE", "PLACE"}


def test_a_byte_order_mark_is_no_part_of_the_first_key(read: Read) -> None:
    assert texts(read(b"\xef\xbb\xbfbroker: {nodeId: a}")) == {"broker.nodeId": "a"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("broker:\n  nodeID: a\n", "c.yaml:2: there is no key broker.nodeID; the nearest is broker.nodeId"),
        ("brokers:\n  nodeId: a\n", "c.yaml:1: there is no key brokers; the nearest is broker"),
        ("partitions: 3\n", "c.yaml:1: there is no key partitions; the nearest is defaults.topic.partitions"),
        ("<<: {}\n", "c.yaml:1: there is no key <<; the nearest is "),
        (
            "storage:\n  fsync: every\n",
            "c.yaml:2: storage.fsync has no value of its own; write its keys below it, intervalMs, mode",
        ),
        ("logging:\n  level: [info]\n", "c.yaml:2: logging.level must be a single value; it must be one of debug, "),
        ("logging:\n  level: {a: b}\n", "c.yaml:2: logging.level must be a single value"),
        ("logging:\n  level: !secret info\n", "c.yaml:2: logging.level must be a single value"),
        ("logging:\n  level: !!binary aW5mbw==\n", "c.yaml:2: logging.level must be a single value"),
        ("logging:\n  level:\n", "c.yaml:2: logging.level has no value; leave it out, or give it one: it must be one"),
        ("broker:\n  dataDir: ~\n", "c.yaml:2: broker.dataDir has no value"),
        (
            "broker:\n  nodeId: a\n  nodeId: b\n",
            "c.yaml:3: broker.nodeId is there twice, first at c.yaml:2; keep one of them",
        ),
        ("broker: {nodeId: a}\nbroker.nodeId: b\n", "c.yaml:2: broker.nodeId is there twice, first at c.yaml:1"),
        ("broker:\n  nodeId: ${NODE}\n", "c.yaml:2: broker.nodeId: the environment has no NODE; set it, or "),
        ("? [a]\n: b\n", "c.yaml:1: is no name of a key"),
        ("just text", "c.yaml:1: is no configuration: it must begin with a section, like broker:"),
        ("- broker", "c.yaml:1: is no configuration"),
        ("broker:\n  a: b: c\n", "c.yaml:2: is no YAML: mapping values are not allowed here"),
        ("broker: {\n", "c.yaml:2: is no YAML: "),
        ("broker: *it\n", "c.yaml:1: is no YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "c.yaml:2: is no YAML: but found another document"),
        ("broker:\n  nodeId: \x07\n", "c.yaml:2: is no YAML: special characters are not allowed"),
        (b"broker: \xff\n", "c.yaml: is not UTF-8 at byte 8"),
        ("[" * 20_000, "c.yaml: is no configuration: it is nested too deeply"),
        ("#" * (2**20 + 1), "c.yaml: is no configuration: it has more than 1048576 bytes"),
    ],
)
def test_a_mistake_is_a_problem_with_its_place(read: Read, text: str | bytes, problem: str) -> None:
    document = read(text)
    (found,) = lines(document)
    assert found.startswith(problem)
    assert len(document.given) <= 1


def test_every_mistake_is_told(read: Read) -> None:
    document = read("a: 1\nb: 2\nbroker: 3\nlogging:\n  level:\n  format: json\n")
    assert [line.partition(": ")[0] for line in lines(document)] == ["c.yaml:1", "c.yaml:2", "c.yaml:3", "c.yaml:5"]
    assert document.given == (Given("logging.format", "json", "c.yaml:6"),)


def test_a_file_that_refers_to_itself_ends(read: Read) -> None:
    assert len(lines(read("&a\nbroker: *a\nlogging: &b\n  level: *b\n"))) == 3


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory"),
        (".", ".: cannot be read: Is a directory"),
        ("", "'': cannot be read: No such file or directory"),
        ("a\0b", "a\0b: cannot be read: embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem(read: Read, file: str, problem: str) -> None:
    assert lines(read_document(file, {})) == [problem]
