"""The methods, by name: those of this package, and those that other packages register as entry points.

A package registers a method under the group `fedcore.methods`, in its pyproject.toml:

    [project.entry-points."fedcore.methods"]
    federated_pca = "my_package:FederatedPCA"

Nothing here imports a method: `fedcore.methods.registry` does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from fedcore.errors import ConfigError

GROUP = "fedcore.methods"
OWN = {
    "histograms": "fedcore.methods.histograms:Histograms",
    "federated_em": "fedcore.methods.federated_em:FederatedEM",
    "gradient_em": "fedcore.methods.gradient_em:GradientEM",
    "mixed_effects": "fedcore.methods.mixed_effects:MixedEffects",
    "private_gmm": "fedcore.methods.private_gmm:PrivateGMM",
    "private_mixture": "fedcore.methods.private_mixture:PrivateMixture",
    "perma": "fedcore.methods.perma:Perma",
    "background": "fedcore.methods.background:Background",
    "dictionaries": "fedcore.methods.dictionaries:Dictionaries",
    "profile": "fedcore.methods.profile:Profile",
}


class Registry(Mapping[str, str]):
    """Where the class of each method is, "module:Class" by name. Other packages are asked only when it is necessary."""

    @cached_property
    def _others(self) -> dict[str, str]:
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=GROUP):
            name = canonical(point.name)
            if name in OWN or (name in found and found[name].value != point.value):
                raise ConfigError(
                    f"two packages register a method named {name!r}; one of them is {point.value}.",
                    "Uninstall one of them.",
                )
            found[name] = point
        return {name: found[name].value for name in sorted(found)}

    def __getitem__(self, name: str) -> str:
        return OWN[name] if name in OWN else self._others[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*OWN, *self._others])

    def __len__(self) -> int:
        return len(OWN) + len(self._others)


METHODS = Registry()


def canonical(name: str) -> str:
    """The name as it is in METHODS: federated-em is federated_em."""
    return name.replace("-", "_")


def from_source(where: str) -> tuple[str, str] | None:
    """(the kind that it reads first, first line of its documentation) of the class at "module:Class", from the source
    of its module, which is not imported. None if the source does not state them there.
    """
    found = _class(where)
    if found is None:
        return None
    cls, places = found
    what = (ast.get_docstring(cls) or "").partition("\n")[0]
    for item in cls.body:
        if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == "kinds" and item.value is not None:
            return str(ast.literal_eval(item.value)[0]), what
    for base in cls.bases:
        of_base = from_source(places.get(ast.unparse(base), ":"))
        if of_base is not None:
            return of_base[0], what
    return None


def _class(where: str) -> tuple[ast.ClassDef, dict[str, str]] | None:
    """A class as its module has it, and the places of what the module imports. Follows imports to it."""
    module, _, name = where.partition(":")
    file = _file_of(module)
    body = [] if file is None else ast.parse(Path(file).read_bytes()).body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    places = {alias.asname or alias.name: f"{node.module}:{alias.name}" for node in imports for alias in node.names}
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, places
    return _class(places[name]) if name in places else None


def _file_of(module: str) -> str | None:
    """The source file of a module. `importlib.util.find_spec` would import the packages that the module is in."""
    path: Sequence[str] | None = None
    file = None
    for end in range(1, module.count(".") + 2):
        name = ".".join(module.split(".")[:end])
        spec = next((spec for one in sys.meta_path if (spec := one.find_spec(name, path)) is not None), None)
        if spec is None:
            return None
        path, file = spec.submodule_search_locations, spec.origin
    return file if file is not None and file.endswith(".py") else None
