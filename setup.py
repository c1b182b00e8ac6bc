"""The optional compiled codec; everything else about the package is in pyproject.toml.

Whatever goes wrong here (no compiler, no headers, a Cython error) leaves a package that works with the
pure-Python codec, slower. `make test` says which of the two it found.
"""

import sys

from setuptools import Extension, setup

PARTS = ("columns", "constants", "encode", "picking", "protobuf")


def compiled_codec() -> list[Extension]:
    extension = Extension(
        "goqueue.codec._compiled",
        sources=["src/goqueue/codec/_compiled.pyx"],
        depends=["src/goqueue/codec/crc32c.h", *(f"src/goqueue/codec/_{part}.pxi" for part in PARTS)],
        include_dirs=["src/goqueue/codec"],
        extra_compile_args=["-O3"],
    )
    try:
        from Cython.Build import cythonize

        extensions: list[Extension] = cythonize([extension], force=True, language_level=3)
    except Exception as error:  # any failure means "no compiled codec", never "no package"
        print(f"warning: the codec is not compiled ({type(error).__name__}: {error})", file=sys.stderr)
        return []
    for built in extensions:
        built.optional = True  # set here because cythonize does not carry it over
    return extensions


setup(ext_modules=compiled_codec())
