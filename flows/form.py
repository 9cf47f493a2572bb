"""The form of a deployment in the UI: parameters in the order of their classes, under the names that deployment files
use, settings of a method by group, and none that is for tests.
"""

from collections.abc import Mapping
from typing import Any

from prefect.utilities.callables import ParameterSchema

OF_TESTS = ("test_noise",)  # parameters that no person is asked for


def arrange(form: ParameterSchema, groups: Mapping[str, str]) -> None:
    """Put the form of a flow in order, in place.

    The places stand in it as numbers, because a server with PostgreSQL keeps no order of names.

    Args:
        groups: of the settings of its method (`fedcore.rounds.method.Method.setting_groups`); empty: it has none
    """
    for name in OF_TESTS:
        form.properties.pop(name, None)
    settings = form.properties.get("config", {}).get("$ref", "").rpartition("/")[2]
    for name, definition in form.definitions.items():
        _order(definition.get("properties", {}), groups if name == settings else {})


def _order(fields: dict[str, Any], groups: Mapping[str, str]) -> None:
    group = ""
    for place, (name, field) in enumerate(fields.items()):
        group = groups.get(name, group)
        field |= {"position": place, "title": f"{group} · {name}" if group else name}
