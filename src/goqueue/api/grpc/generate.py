"""Write `proto/`, and the Python code that protoc makes of it. Run it in the repository, after a change of shapes.

    python -m goqueue.api.grpc.generate

Needs `grpcio-tools`; running a broker does not.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from goqueue.api.grpc.proto import FILE, NUMBERS, list_numbers, read_numbers, write
from goqueue.api.grpc.streams import SCHEMA

CODE: Final = Path(__file__).parent / "generated" / "goqueue_pb2.py"


def proto_text(file: Path) -> str:
    """What should be in the file, whose numbers are kept."""
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    return write(SCHEMA, read_numbers(before))


def compile_proto(root: Path, into: Path, *what: str) -> None:
    """Run protoc on the file below `root`. `what` it is to make: options, to which the directory is added."""
    words = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", *(f"{option}={into}" for option in what), FILE]
    subprocess.run(words, check=True)


def main(root: Path) -> None:
    file = root / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(proto_text(file), encoding="utf-8")
    listing = root / NUMBERS
    listed = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    now = list_numbers(SCHEMA, read_numbers(file.read_text(encoding="utf-8")))
    lines = [*listed, *(line for line in now if line not in set(listed))]
    listing.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with TemporaryDirectory() as scratch:
        compile_proto(root, Path(scratch), "--python_out")
        made = Path(scratch, FILE).with_name(CODE.name)
        CODE.write_text(made.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "proto"))
