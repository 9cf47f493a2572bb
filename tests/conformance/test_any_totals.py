"""The bounds of each private method hold for any published totals and any start (docs/privacy/any-totals.md).

The law of sensitivity of all cases is in `test_laws`; here are cases with other messages, by method.
"""

import pytest

from fedcore.testing import LAWS
from tests.conformance.cases import case

pytestmark = pytest.mark.slow


def holds(name: str) -> None:
    LAWS["sensitivity"](case(name))


@pytest.mark.parametrize("name", ["private-one-mean", "private-after-private-grown", "private-weights"])
def test_histograms(name):
    holds(f"histograms/{name}")


@pytest.mark.parametrize("name", ["private-tied", "private-after-private-mixture"])
def test_federated_em(name):
    holds(f"federated_em/{name}")


@pytest.mark.parametrize("name", ["series", "two-levels"])
def test_private_gmm(name):
    holds(f"private_gmm/{name}")


@pytest.mark.parametrize("name", ["series", "records-replace-one", "gaps", "categories"])
def test_private_mixture(name):
    holds(f"private_mixture/{name}")


@pytest.mark.parametrize("name", ["private-series"])
def test_dictionaries(name):
    holds(f"dictionaries/{name}")


@pytest.mark.parametrize("name", ["numbers"])
def test_profile(name):
    holds(f"profile/{name}")
