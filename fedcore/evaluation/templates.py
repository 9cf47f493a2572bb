"""The HTML of reports: templates of this package, with everything escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any


def rendered(name: str, filters: Mapping[str, Callable[..., str]] | None = None, **values: Any) -> str:
    """The template of this name, filled in. Text is escaped, except `markupsafe.Markup`."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    return environment.get_template(name).render(**values)


def markup(html: str) -> Any:
    """HTML that is put into another template as it is."""
    from markupsafe import Markup

    return Markup(html)


def _source(name: str) -> str:
    return resources.files("fedcore.evaluation").joinpath(name).read_text(encoding="utf-8")
