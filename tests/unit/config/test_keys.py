"""The table of keys itself."""

import re

import msgspec
import pytest

from goqueue.config.keys import BY_FLAG, BY_PATH, BY_VARIABLE, KEYS, SECTIONS, Key
from goqueue.config.settings import Settings


def fields(struct: type[msgspec.Struct], prefix: str = "") -> set[str]:
    """Where in a struct, and in the structs it holds, values are."""
    found = set()
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found |= fields(field.type, f"{prefix}{field.name}.")
        else:
            found.add(f"{prefix}{field.name}")
    return found


def test_no_two_keys_share_a_name() -> None:
    assert len(BY_PATH) == len(BY_VARIABLE) == len(KEYS)
    assert len(BY_FLAG) == len([key for key in KEYS if key.flag])
    assert not BY_PATH.keys() & SECTIONS


def test_every_field_of_the_settings_has_its_key() -> None:
    assert {key.field for key in KEYS if key.field} == fields(Settings) - {"warnings", "sources"}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_a_key_without_a_field_is_one_that_cannot_be_changed(key: Key) -> None:
    assert key.field is not None or not key.built


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_every_name_has_its_form(key: Key) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z]+)*\.[a-z][A-Za-z]*", key.path)
    assert re.fullmatch(r"GOQUEUE(_[A-Z]+)+", key.variable)
    assert key.flag is None or re.fullmatch(r"-(-[a-z]+)+", key.flag)
    assert key.about.endswith(".")


@pytest.mark.parametrize("key", [key for key in KEYS if key.path.split(".")[0] not in {"broker", "metrics", "logging"}])
def test_a_variable_without_a_short_name_follows_its_key(key: Key) -> None:
    words = re.sub(r"([A-Z])", r"_\1", key.path).replace(".", "_").upper()
    assert key.variable == f"GOQUEUE_{words}"


def test_keys_of_one_section_stand_together() -> None:
    seen: list[str] = []
    for key in KEYS:
        *sections, _ = key.path.split(".")
        for depth in range(1, len(sections) + 1):
            section = ".".join(sections[:depth])
            if section not in seen:
                seen.append(section)
            within = [other for other in KEYS if other.path.startswith(f"{section}.")]
            first = KEYS.index(within[0])
            assert tuple(within) == KEYS[first : first + len(within)]


def test_sections_are_what_stands_above_keys() -> None:
    assert {"broker", "broker.listeners", "defaults.topic.retention"} <= SECTIONS


def test_a_key_that_is_not_built_says_why_and_what_it_must_be() -> None:
    assert BY_PATH["broker.listeners.internal"].wanted == "several nodes are not built yet, so it must be off"


def test_only_root_has_another_data_directory() -> None:
    key = BY_PATH["broker.dataDir"]
    assert (key.default_for(is_root=False), key.default_for(is_root=True)) == ("./data", "/var/lib/goqueue")
    assert BY_PATH["broker.nodeId"].default_for(is_root=True) == "node-1"
