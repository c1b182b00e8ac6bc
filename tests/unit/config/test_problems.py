"""All problems in one error."""

from goqueue.config.problems import ConfigProblems, Problem
from goqueue.model.errors import InvalidSetting


def test_the_error_has_every_problem_a_line_each() -> None:
    error = ConfigProblems([Problem("flag --http", "is wrong"), Problem("c.yaml:3", "too")])
    assert isinstance(error, InvalidSetting)
    assert str(error) == "flag --http: is wrong\nc.yaml:3: too"
    assert error.details == {"problems": ["flag --http: is wrong", "c.yaml:3: too"]}
    assert error.code == "invalid_setting"
