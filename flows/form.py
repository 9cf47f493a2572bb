"""The form of a deployment in the UI: the parameters that a person sets for a single run, in the order of their classes
and under the names that deployment files use. Everything else keeps the value of the deployment, and is taken from a
run that is started with JSON (in the form: the menu of "Parameters", "Use JSON input").
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefect.utilities.callables import ParameterSchema

TRAINING = ("population", "config", "version", "start_from")  # parameters of a training that its form shows
PIPELINE = ("at",)


def arrange(form: ParameterSchema, shown: Sequence[str], main: Sequence[str], given: Mapping[str, Any]) -> None:
    """Leave in the form of a flow what a person sets, in order, in place.

    The places stand in it as numbers, because a server with PostgreSQL keeps no order of names.

    Args:
        shown: parameters that stay, and those of them that are settings of a method with only the main ones
        main: settings of its method that are shown (`fedcore.rounds.method.settings_by_place`); empty: it has none
        given: settings that the deployment sets, which are shown as well
    """
    form.properties = {name: form.properties[name] for name in shown}
    form.required = [name for name in form.required if name in shown]
    config = form.properties.get("config", {})
    if main and len(_last(config.get("$ref", ""))):
        config["description"] = f"{config.get('description', 'settings of the method')}; others as JSON input"
    settings = {_last(config.get("$ref", "")): given}
    for item, mine in [*_choices(form, settings)]:
        item["anyOf"] = item.pop("oneOf")  # of which the UI shows a form for each, and of the other only its JSON
        settings |= {_last(place): mine for place in item.pop("discriminator")["mapping"].values()}
    for name, definition in form.definitions.items():
        if main and name in settings:
            fields = definition["properties"]
            stay = [one for one in ("name", *main, *settings[name]) if one in fields]
            definition["properties"] = {one: fields[one] for one in dict.fromkeys(stay)}
            definition.pop("additionalProperties", None)  # the flow itself refuses settings that do not exist
        for place, (field, facts) in enumerate(definition.get("properties", {}).items()):
            facts |= {"position": place, "title": field}


def _choices(
    form: ParameterSchema, settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """(a setting that is one of several forms, what the deployment sets of it)."""
    for name, given in settings.items():
        for setting, item in form.definitions.get(name, {}).get("properties", {}).items():
            if "discriminator" in item:
                mine = given.get(setting)
                yield item, mine if isinstance(mine, Mapping) else {}


def _last(place: str) -> str:
    return place.rpartition("/")[2]
