"""python -m benchmarks [NAME] [--json] [--clients N] [--dir DIR]"""

import argparse
import json
from importlib import import_module
from pathlib import Path

NAMES = {
    "em": "client updates of federated EM per CPU-second, against NumPy in memory and a peer",
    "round": "one histogram round: whole flow on 2 workers against SciPy in memory",
    "private_gmm": "passes of a private mixture over 100 rows for each client: seconds against NumPy, memory",
    "memory": "peak memory of every process against the number of clients",
    "noise": "secure noise: seconds for each 10,000 cells",
    "store": "store: reading and writing against raw file speed",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path("benchmark-data"), help="where populations are kept")
    chosen = parser.parse_args()
    if chosen.name is None:
        for name, what in NAMES.items():
            print(f"{name:12} {what}")
        return
    result = import_module(f"benchmarks.{chosen.name}").measure(chosen)
    if chosen.json:
        print(json.dumps(result))
        return
    for row in result["rows"]:
        shown = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print("  ".join(shown))


if __name__ == "__main__":
    main()
