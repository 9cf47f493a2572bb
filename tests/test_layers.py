"""Who may import whom (docs/architecture.md): arrows run downwards only, and there are no circles.

Every import counts: at the top of a module, inside a function, for types only, and by name (`import_module`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fedcore.methods.names import OWN

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "fedcore": "fedcore",
    "fedcore.flows": "flows",
    "fedcore.tasks": "tasks",
    "fedcore.deployments": "deployments",
    "fedcore.papers": "papers",
}

# From the lowest to the highest; a room imports lower ones only, and none beside it.
LAYERS = (
    {"errors", "randomness"},
    {"storage"},
    {"population"},
    {"privacy"},
    {"runs"},
    {"rounds"},
    {"methods"},
    {"training"},
    {"evaluation", "planning"},
    {"operations"},
    {"interface", "sites"},
    {"cli"},
    {"testing"},
)
ABOVE = {"flows", "tasks", "deployments", "papers", "__init__"}  # and the package itself
LOOSE = {"__init__", "errors", "randomness"}
# What a method room may import besides itself. Baselines may use the noise as well.
METHOD_ROOM = {"fedcore.errors", "fedcore.randomness", "fedcore.privacy.plan", "fedcore.privacy.grid"}
METHOD_ROOM |= {f"fedcore.population.{name}" for name in ("blocks", "columns", "streaming")}
METHOD_ROOM |= {f"fedcore.rounds.{name}" for name in ("choices", "private_settings", "fitted", "messages", "old_names")}
METHOD_ROOM |= {f"fedcore.rounds.{name}" for name in ("method", "pictures", "results", "scores", "statistics")}
METHOD_ROOM |= {"fedcore.methods.dictionary_learning", "fedcore.methods.mixture_models"}
BASELINES = METHOD_ROOM | {"fedcore.privacy.accounting", "fedcore.privacy.mechanisms"}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by the name under which it installs."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def loads_tasks(module: str) -> bool:
    """Commands load Prefect and Dask by name, when they are asked to."""
    return room(module) == "cli" or module == "fedcore.testing.__main__"


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Imports, calls of `import_module`, and texts."""
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of the package that a module imports, wherever it does so."""
    return frozenset(name for name in _imports(modules()[module], module) if name != module)


def _imports(path: Path, module: str) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (_known(alias.name) for alias in node.names if alias.name.split(".")[0] == "fedcore")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            if node.module and node.module.split(".")[0] == "fedcore":
                yield from (_known(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call):
            named = str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else ""
            if named.split(".")[0] == "fedcore":
                yield _known(named)


def _known(name: str) -> str:
    """The module that an imported name is, or is in."""
    while name not in modules():
        assert "." in name, f"{name} is no module of the package"
        name = name.rpartition(".")[0]
    return name


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def layer(name: str) -> int:
    return next(number for number, rooms in enumerate(LAYERS) if name in rooms)


def test_every_room_has_a_layer():
    rooms = {room(name) for name in modules()} - ABOVE
    assert rooms == set().union(*LAYERS)
    assert len(rooms) <= 20


def test_few_modules_are_loose():
    assert {path.stem for path in (ROOT / "fedcore").glob("*.py")} == LOOSE


def test_arrows_run_downwards():
    for module in modules():
        if room(module) in ABOVE:
            continue
        for other in imports(module):
            if room(other) in (room(module), "__init__") or (loads_tasks(module) and room(other) in ("flows", "tasks")):
                continue
            assert layer(room(other)) < layer(room(module)), f"{module} imports {other}"


def test_tasks_know_no_flows_and_nothing_but_the_command_line_knows_either():
    for module in modules():
        seen = {room(other) for other in imports(module)}
        if room(module) == "tasks":
            assert not seen & {"flows", "cli"}, module
        if room(module) == "flows":
            assert "cli" not in seen, module
        if room(module) not in ABOVE and not loads_tasks(module):
            assert not seen & {"flows", "tasks"}, module


def test_the_core_imports_neither_prefect_nor_dask():
    for module, path in modules().items():
        if room(module) in ABOVE:
            continue
        for node in nodes(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"prefect", "dask", "distributed"}, module


def test_the_product_imports_nothing_of_the_papers():
    for module in modules():
        if room(module) != "papers":
            assert "papers" not in {room(other) for other in imports(module)}, module


def test_no_circles():
    """Tarjan's strongly connected components of the modules; a package and what is in it are different modules."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(imports(module)):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            members = [stack.pop()]
            while members[-1] != module:
                members.append(stack.pop())
            if len(members) > 1:
                circles.append(sorted(members))

    for module in modules():
        if module not in index:
            visit(module)
    assert not circles


@pytest.mark.parametrize("name", sorted(OWN))
def test_a_method_room_imports_what_a_method_needs(name):
    own = OWN[name].partition(":")[0]
    for module in modules():
        if module == own or module.startswith(f"{own}."):
            allowed = BASELINES if "baselines" in module.removeprefix(own).split(".") else METHOD_ROOM
            others = {other for other in imports(module) if not f"{other}.".startswith(f"{own}.")}
            strange = {other for other in others if not any(f"{other}.".startswith(f"{one}.") for one in allowed)}
            assert not strange, f"{module} imports {sorted(strange)}"


def test_mixture_models_know_no_rounds():
    for module in modules():
        if module.startswith("fedcore.methods.mixture_models"):
            known = {"fedcore.errors", "fedcore.randomness", "fedcore.population.blocks"}
            known |= {"fedcore.rounds.statistics", "fedcore.rounds.results"}  # plain values of no round
            others = {other for other in imports(module) if not other.startswith("fedcore.methods.mixture_models")}
            assert others <= known, f"{module} imports {sorted(others - known)}"


def test_dictionary_learning_knows_no_method():
    for module in modules():
        if module.startswith("fedcore.methods.dictionary_learning"):
            others = [other for other in imports(module) if other.startswith("fedcore.methods")]
            assert all(other.startswith("fedcore.methods.dictionary_learning") for other in others), module


def test_no_shared_module_names_a_method():
    """Names of methods as text stand in their own rooms, in the registry, with the papers' tables, with the estimators
    that are each one's face, and with the demo.
    """
    for module, path in modules().items():
        if (
            module.startswith(("fedcore.methods.", "fedcore.papers", "fedcore.interface."))
            or module == "fedcore.cli.experiments"
        ):
            continue
        for node in nodes(path):
            assert not (isinstance(node, ast.Constant) and node.value in OWN), f"{module} names {node.value!r}"
