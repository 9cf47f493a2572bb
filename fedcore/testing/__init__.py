"""Conformance tests that every method must pass, as functions. `python -m fedcore.testing PACKAGE:Class` runs all of
them.

A package's own tests can call them too:

```
from fedcore.testing import LAWS, cases_for

@pytest.mark.parametrize("check", LAWS.values(), ids=LAWS)
def test_conformance(check):
    for case in cases_for(MyMethod(MyConfig(components=2))):
        check(case)
```

`each_setting_matters(cases)` is one more test, which compares runs. Cases may be made by hand, with a `SmallPopulation`
and another warm start. docs/adding-a-method.md is the guide.
"""

from fedcore.testing import privacy_laws as _privacy_laws  # registers its tests
from fedcore.testing import sites_law as _sites_law  # registers its test
from fedcore.testing.broken import LawBroken
from fedcore.testing.cases import Case, cases_for
from fedcore.testing.laws import LAWS, same_with
from fedcore.testing.populations import SmallPopulation, random_population
from fedcore.testing.settings_law import Hint, each_setting_matters, own_settings, what_changes

noise_from = _privacy_laws.noise_from
same_at_sites = _sites_law.same_at_sites

__all__ = [
    "LAWS",
    "Case",
    "Hint",
    "LawBroken",
    "SmallPopulation",
    "cases_for",
    "each_setting_matters",
    "noise_from",
    "own_settings",
    "random_population",
    "same_at_sites",
    "same_with",
    "what_changes",
]
