"""The form of a deployment in the UI: parameters in the order of their classes, under the names that deployment files
use, the main settings of a method before those called "Advanced", and none that is for tests.
"""

from collections.abc import Sequence
from typing import Any

from prefect.utilities.callables import ParameterSchema

OF_TESTS = ("test_noise",)  # parameters that no person is asked for


def arrange(form: ParameterSchema, main: Sequence[str]) -> None:
    """Put the form of a flow in order, in place.

    The places stand in it as numbers, because a server with PostgreSQL keeps no order of names.

    Args:
        main: settings of its method that come first (`fedcore.rounds.method.settings_by_place`); empty: it has none
    """
    for name in OF_TESTS:
        form.properties.pop(name, None)
    settings = {_last(form.properties.get("config", {}).get("$ref", ""))}
    for item in [item for name in settings for item in form.definitions.get(name, {}).get("properties", {}).values()]:
        if choice := item.pop("discriminator", None):
            item["anyOf"] = item.pop("oneOf")  # of which the UI shows a form for each, and of the other only its JSON
            settings |= {_last(place) for place in choice["mapping"].values()}
    for name, definition in form.definitions.items():
        _order(definition.get("properties", {}), main if name in settings else ())


def _last(place: str) -> str:
    return place.rpartition("/")[2]


def _order(fields: dict[str, Any], main: Sequence[str]) -> None:
    """main: names of fields that come first; empty: all fields are alike."""
    first = [name for name in ("name", *main) if main and name in fields]
    rest = [name for name in fields if name not in first]
    for place, name in enumerate([*first, *rest]):
        fields[name] |= {"position": place, "title": f"Advanced · {name}" if first and name in rest else name}
