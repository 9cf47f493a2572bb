"""python -m benchmarks [NAME] [--json] [--history FILE] [--clients N] [--dir DIR] ...
python -m benchmarks compare FILE [--between COMMIT COMMIT] [--json]"""

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks import history, machine
from fedcore.cli.terminal import table
from fedcore.errors import FedcoreError

NAMES = {
    "em": "client updates of federated EM per CPU-second, against NumPy in memory and a peer",
    "round": "one histogram round: whole flow on 2 workers against SciPy in memory",
    "plain_histograms": "CPU-seconds of a whole private histograms run, beside a plain SciPy script with its releases",
    "gradient_em": "one round of FedGrEM, default and preset, against a loop over clients and NumPy on all of them",
    "writers": "FedGrEM, 44 writers and 1000 rounds, run store and flow included, against a loop over the writers",
    "dictionaries": "one round of PerMA, 1000 clients, against a loop over clients and NumPy on all of them",
    "sparse_coding": "codes by matching pursuit beside scikit-learn's, and the sums of a round made of them",
    "perma_mnist": "PerMA on the MNIST table: seconds beside the paper's and beside a loop over clients",
    "private_gmm": "passes of a private mixture over 100 rows for each client: seconds against NumPy, memory",
    "scale": "rounds at 10,000 to --clients clients, 1 to 4 workers, cached or not: seconds and memory",
    "plan": "what `fedcore plan` promises of a run of every method, over what the run took",
    "peers": "one iteration of what other libraries offer, on the same rows and one core",
    "orchestration": "what Prefect, its server, Dask and the run store take of a round, cheap or of a second",
    "ingest": "CSV and Parquet to a population: microseconds a row, next to Arrow and a floor in memory; with workers",
    "startup": "seconds of small commands in fresh processes, with a Prefect server and without",
    "memory": "peak memory of every process against the number of clients",
    "noise": "secure noise: CPU-microseconds for a cell, beside NumPy's",
    "cohorts": "verifying a ledger of 520 runs, by cohort and as one account: CPU-seconds",
    "serve": "memory of `fedcore serve` over --runs quick runs, and by how much it grows with each",
    "fit": "`FederatedMixture(8).fit` of arrays of 300 to --clients rows, beside scikit-learn's GaussianMixture(8)",
    "large": "a Gaussian mixture of a table of --clients thousand rows: from files, and by scikit-learn in memory",
    "billion": "books of 10 million to --clients clients in 1e3 to 1e6 blocks: opening, planning, rounds, forgetting",
    "profile": "errors of `profile` beside those of OpenDP at the same epsilon, on real and generated tables",
    "store": "store: reading and writing against raw file speed",
}


def main() -> None:
    chosen = parser().parse_args()
    if chosen.name is None:
        for name, what in NAMES.items():
            print(f"{name:12} {what}")
        return
    if chosen.name == "compare":
        try:
            rows, remarks = history.compare(history.read(chosen.file), chosen.between)
        except (OSError, ValueError) as error:
            sys.exit(f"python -m benchmarks compare: {error}")
        if chosen.json:
            print(json.dumps({"rows": rows, "remarks": remarks}))
            return
        table("", [{name: "" if value is None else value for name, value in row.items()} for row in rows])
        print("\n".join(remarks))
        return
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")  # of flows that run in this process
    module = import_module(f"benchmarks.{chosen.name}")
    chosen.clients = chosen.clients or getattr(module, "CLIENTS", 100_000)
    chosen.workers = chosen.workers or getattr(module, "WORKERS", 2)
    chosen.peers = dict(chosen.peer)
    before = machine.load()
    try:
        result = module.measure(chosen)
    except FedcoreError as error:
        sys.exit(f"python -m benchmarks {chosen.name}: {error}")
    if chosen.history is not None:
        settings = {name: getattr(chosen, name) for name in ("clients", "workers", "repeats")}
        history.append(chosen.history, history.lines(result, settings, before))
    if chosen.json:
        print(json.dumps(result))
        return
    for row in result["rows"]:
        shown = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print("  ".join(shown))


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = whole.add_subparsers(dest="name", metavar="NAME")
    for name, what in NAMES.items():
        one = names.add_parser(name, help=what)
        one.add_argument("--json", action="store_true", help="print one object")
        one.add_argument("--history", type=Path, metavar="FILE", help="append what was measured to this file")
        one.add_argument("--clients", type=int, help="size of the population")
        one.add_argument("--least", type=int, help="of `scale`: the smallest size")
        one.add_argument(
            "--only", nargs="+", default=[], metavar="CASE", help="of `scale`, `plan` and `profile`: these cases"
        )
        one.add_argument("--workers", type=int)
        one.add_argument("--repeats", type=int, default=3)
        one.add_argument("--runs", type=int, default=50, help="of `serve`: so many, one after the other")
        one.add_argument("--dir", type=Path, default=Path("benchmark-data"), help="where populations are kept")
        one.add_argument(
            "--peer",
            type=_peer,
            action="append",
            default=[],
            metavar="NAME=INTERPRETER",
            help="an interpreter that has this library",
        )
    compared = names.add_parser("compare", help="ratios between two commits of a history")
    compared.add_argument("file", type=Path)
    compared.add_argument("--between", nargs=2, metavar="COMMIT", help="default: the last two")
    compared.add_argument("--json", action="store_true")
    return whole


def _peer(text: str) -> tuple[str, str]:
    name, equals, interpreter = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=INTERPRETER")
    return name, interpreter


if __name__ == "__main__":
    main()
