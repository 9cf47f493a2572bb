"""Settings that left the method are refused with where they went. That each setting changes something is looked at in
tests/conformance/test_settings.py.
"""

import pytest

from fedcore.errors import ConfigError
from fedcore.methods.histograms.config import MOVED
from fedcore.methods.registry import make_method


@pytest.mark.parametrize("name", sorted({name.partition("=")[0] for name in MOVED}))
def test_settings_that_left_are_refused_with_where_they_are(name):
    with pytest.raises(ConfigError, match=f"'{name}' .*paper_histograms"):
        make_method("histograms", {name: "fedavg"})


def test_the_algorithm_is_left_out():
    with pytest.raises(ConfigError, match="histograms has one algorithm now, leave it out"):
        make_method("histograms", {"algorithm": "private"})
