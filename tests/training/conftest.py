"""One undisturbed training, which several tests look at."""

import pytest

from tests.training.trained import Training, carried_out


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return carried_out(tmp_path_factory.mktemp("trained"))
