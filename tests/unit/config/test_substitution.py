"""${NAME} and ${NAME:default}."""

import pytest

from goqueue.config.substitution import substitute

ENVIRON = {"HOST": "10.0.0.1", "EMPTY": "", "TRICK": "${HOST}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${HOST}", "10.0.0.1"),
        ("${HOST:other}", "10.0.0.1"),
        ("${NONE:other}", "other"),
        ("${NONE:}", ""),
        ("${EMPTY:other}", ""),
        ("${HOST}:${PORT:8080}", "10.0.0.1:8080"),
        ("${NONE:127.0.0.1:8080}", "127.0.0.1:8080"),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$${HOST}"),
        ("$HOST and $", "$HOST and $"),
        ("${TRICK}", "${HOST}"),
    ],
)
def test_variables_are_filled_in(text: str, expected: str) -> None:
    found = substitute(text, ENVIRON)
    assert (found.text, found.wrong) == (expected, ())


def test_it_tells_which_variables_it_looked_for() -> None:
    assert substitute("${HOST}${NONE:x}$${TRICK}", ENVIRON).names == {"HOST", "NONE"}


def test_a_variable_that_is_not_set_needs_a_default() -> None:
    found = substitute("${A}-${B}", ENVIRON)
    assert found.wrong == (
        "the environment has no A; set it, or write a default: ${A:default}",
        "the environment has no B; set it, or write a default: ${B:default}",
    )


@pytest.mark.parametrize("text", ["${", "${HOST", "${}", "${1A}", "${A-B}", "${A:${B:c}}", "${A B}"])
def test_a_place_of_another_form_is_refused(text: str) -> None:
    (wrong,) = substitute(text, ENVIRON).wrong
    assert "write ${NAME} or ${NAME:default}, or $${ for ${" in wrong
