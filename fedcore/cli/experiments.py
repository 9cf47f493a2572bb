"""`fedcore reproduce`: tables of the papers; `fedcore demo`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from fedcore.cli.options import Cache, Dask, Json, Local, Workers, use_ledger
from fedcore.cli.runs import evaluate
from fedcore.cli.terminal import bar, parse_bytes, say, table
from fedcore.cli.training import train
from fedcore.errors import ConfigError


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of the experiment; without one they are listed.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version of the same table.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, max=100, help="Repetitions, for intervals (default 3).")] = None,
    population: Annotated[str | None, typer.Option(help="A population instead of the experiment's own data.")] = None,
    dir: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Folder of the experiment; with the same folder it resumes. Default: reproduce-NAME."
        ),
    ] = None,
    workers: Workers = None,
    dask: Dask = None,
    local: Local = False,
    cache: Cache = "512MiB",
    as_json: Json = False,
) -> None:
    """Rebuild a table or a figure of a paper, with the paper's numbers next to ours. Nothing in it is private."""
    papers = _papers()
    if name is None:
        rows = papers.names()
        return say({"experiments": rows}, True) if as_json else table("Experiments", rows)
    options = {"quick": quick, "seeds": seeds, "population": population}
    compute = {"workers": workers, "dask": dask, "cache_bytes": parse_bytes(cache)}
    folder = dir or Path(f"reproduce-{name}")
    with bar(f"reproduce {name}", as_json) if local else nullcontext() as progress:

        def tell(done: int, cells: int, title: str) -> None:
            if progress is not None:
                progress(done, cells)

        result = papers.reproduce(name, options, folder, compute, tell if local else None)
    if as_json:
        return say(
            {"title": result.title, "rows": list(result.rows), "notes": list(result.notes), "folder": str(folder)}, True
        )
    table(result.title, result.rows)
    print("\n".join(["", *(f"- {note}" for note in result.notes), f"- Also in {folder} as table.md and figure.png."]))


def _papers() -> ModuleType:
    """What carries experiments out: the product does not import the papers. Raises ConfigError."""
    for point in entry_points(group="fedcore.commands", name="reproduce"):
        found: ModuleType = point.load()
        return found
    raise ConfigError(
        "The tables of the papers are not installed.", "Install fedcore from its repository, with the folder papers."
    )


def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Folder for everything the demo makes.")] = Path("fedcore-demo"),
    local: Local = False,
    workers: Workers = None,
) -> None:
    """A private training run over real data that this machine has: the source files of its Python packages."""
    from fedcore.cli.demo_data import prepare

    if (dir / "runs").exists():
        raise ConfigError(f"{str(dir)!r} holds a demo already.", "Choose another --dir, or delete that folder.")
    prepare(dir, say=lambda text: print(text, file=sys.stderr))
    use_ledger(f"sqlite:///{(dir / 'ledger.sqlite').resolve()}")
    train("histograms", str(dir / "population"), runs=str(dir / "runs"), run_id="demo", workers=workers, local=local)
    evaluate(str(dir / "runs" / "demo"), str(dir / "evaluation"), workers=workers, local=local)
    print(
        f"\nReport:  {dir / 'runs' / 'demo' / 'report.html'}\n"
        f"Budget:  fedcore budget show {dir / 'population'}\n"
        f"Run:     fedcore runs show {dir / 'runs' / 'demo'}"
    )
