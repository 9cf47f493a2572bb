"""Settings that left the method are refused with where they went. That each setting changes something is looked at in
tests/conformance/test_settings.py.
"""

import pytest

from fedcore.errors import ConfigError
from fedcore.methods.histograms.config import MOVED
from fedcore.methods.registry import make_method


@pytest.mark.parametrize("given", sorted(MOVED))
def test_settings_that_left_are_refused_with_what_became_of_them(given):
    name, _, value = given.partition("=")
    with pytest.raises(ConfigError) as refused:
        make_method("histograms", {name: value or "fedavg"})
    assert name in str(refused.value) and MOVED[given] in str(refused.value)


def test_the_algorithm_is_left_out():
    with pytest.raises(ConfigError, match="histograms has one algorithm now, leave it out"):
        make_method("histograms", {"algorithm": "private"})
