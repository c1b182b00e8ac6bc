"""The file that remembers brokers by name: which there are, and which is in use.

It is replaced as a whole, and only its owner may read it.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from goqueue.config.nearness import alike
from goqueue.model.errors import InvalidRequest, NotFound

VARIABLE: Final = "GOQUEUE_CLI_CONFIG"
_MODE: Final = 0o600


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: str


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`current` is the one in use; None for none."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def address_of(self, name: str) -> str:
        return self.find(name).address

    def find(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            raise NotFound(f"there is no context {name!r}; {self._instead(name)}")
        return found

    def _instead(self, name: str) -> str:
        near = alike(name, self.contexts)
        if near is not None:
            return f"did you mean {near}?"
        if self.contexts:
            return f"there are: {', '.join(sorted(self.contexts))}"
        return f"make it with goqueue-cli context set {name} --address HOST:PORT"


def path() -> Path:
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home) / "goqueue" / "cli.yaml"


def load() -> Contexts:
    where = path()
    try:
        text = where.read_bytes()
    except FileNotFoundError:
        return Contexts()
    import yaml  # only who has contexts waits for it

    try:
        return msgspec.convert(yaml.safe_load(text) or {}, Contexts)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"{where} is no file of contexts ({reason}); repair it, or remove it") from None


def save(contexts: Contexts) -> None:
    """A file beside it, synced, then renamed: whoever reads finds the old one or the new one."""
    import yaml

    where = path()
    where.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(msgspec.to_builtins(contexts), sort_keys=False)
    number, temporary = tempfile.mkstemp(dir=where.parent, prefix=f".{where.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, where)
    except BaseException:
        os.unlink(temporary)
        raise
