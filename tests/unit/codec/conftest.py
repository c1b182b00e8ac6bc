"""Every test that asks for `codec` runs once per implementation."""

from types import ModuleType

import pytest

from tests.unit.codec.samples import TWINS, load_twin


@pytest.fixture(scope="session", params=TWINS)
def codec(request: pytest.FixtureRequest) -> ModuleType:
    return load_twin(request.param)


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    return load_twin("_compiled")
