"""What is wrong with a configuration: all of it at once, each with where it was written and what would be right."""

from collections.abc import Iterable
from typing import Any

import msgspec

from goqueue.model.errors import InvalidSetting


class Problem(msgspec.Struct, frozen=True):
    """`where` is a file with its line, an environment variable or a flag."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class ConfigProblems(InvalidSetting):
    """The configuration cannot be used; `problems` has everything that is wrong with it, a line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @property
    def details(self) -> dict[str, Any]:
        return {"problems": [str(problem) for problem in self.problems]}
