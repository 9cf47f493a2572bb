"""Three sites and an S3 server on hosts of their own, for weeks: `python -m tests.sites.hosts --dir FOLDER`, as root.

Each host is a network namespace, joined to the server's by one cable, and nothing is forwarded: no site has a route to
another. Each site is another user of the machine, with a folder for its owner alone. All they send passes a relay
that is 40 ms late in each direction and cuts connections now and then. The sites serve two studies, a private mixture
and weekly histograms, with `fedcore site serve`; a week lasts 45 seconds. One site is killed after it has posted an
answer, and started again.

Then the states of all sites must have the same bits, and an independent replay of each ledger must find what the
study states. `--cost` measures: no delay, no cuts, no kill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.runs.store import Run
from fedcore.sites.study import Study, read_study
from tests.namespaces import LIMIT, PORT, Hosts, serving, until
from tests.relay import BUCKET, Request
from tests.sites.costs import FILE, cost_table, masks_ms
from tests.sites.world import REPLAY, same_bits, url

NAMES = ("a", "b", "c")
STUDIES = {"mixture": "people", "histograms": "blogs"}  # and the population of each site
FIRST_USER, NET = 47100, "10.77"
LATE, CUTS = 0.04, 0.02
WEEK = 45.0  # seconds between the starts of two runs
PEOPLE = 4000  # of each site, in the table
BLOGS = 300  # of each site, in the counts
GROUPS = ((95, 118), (188, 131))
SHARES = {"a": (80, 20), "b": (50, 50), "c": (40, 60)}


# --- hosts ------------------------------------------------------------------------------------------------------------


def hosts_at(folder: Path) -> Hosts:
    """The sites' hosts, each with a ledger in its folder."""
    ledgers = {name: {"FEDCORE_LEDGER": url(folder / name)} for name in NAMES}
    return Hosts(folder, NAMES, NET, FIRST_USER, more=ledgers)


# --- what the sites do ------------------------------------------------------------------------------------------------

PREPARE = f"""
fedcore site init $USER --json > public.json
fedcore population ingest patients.csv people --format csv --kind rows --unit record --columns glucose,pressure \\
    --bounds glucose=0:400 --bounds pressure=40:260 --declared-clients {PEOPLE}
fedcore budget set people --epsilon 8 --delta 1e-6 --unit record --public-schema "columns of a form" \\
    --shared-ids "rows are numbered"
fedcore population ingest blogs.csv blogs --format csv --kind counts --vocabulary words.txt --declared-clients {BLOGS}
fedcore budget set blogs --epsilon 20 --delta 1e-6 --public-schema "a list of words"
"""
PROPOSE = f"""
fedcore study new mixture.json --method private-mixture --set components=2 --set rounds=3 --epsilon-a-run 1 \\
    --population-like people --mailbox s3://{BUCKET}/mixture --every 7d SITES_OF_{PEOPLE}
fedcore study new histograms.json --method histograms --set clusters=2 --set rounds=3 --epsilon-a-run 4 \\
    --population-like blogs --mailbox s3://{BUCKET}/histograms --every {WEEK:g}s SITES_OF_{BLOGS}
"""
JOIN = f"""
fedcore study join s3://{BUCKET}/mixture --population people --yes
fedcore study join s3://{BUCKET}/histograms --population blogs --yes
"""


def write_data(folder: Path, site: str, seed: int) -> None:
    """A table of patients, and counts of words that clients wrote."""
    draw = random.Random(f"{seed} {site}")
    lines = ["glucose,pressure"]
    for _ in range(PEOPLE):
        glucose, pressure = draw.choices(GROUPS, SHARES[site])[0]
        lines.append(f"{draw.gauss(glucose, 9):.1f},{draw.gauss(pressure, 7):.1f}")
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")
    words, lines = [f"word{number}" for number in range(20)], ["client,token,count"]
    for client in range(BLOGS):
        liked = draw.choices((words[:12], words[8:]), SHARES[site])[0]
        lines += [f"{site}{client},{word},{draw.randint(1, 9)}" for word in draw.sample(liked, 8)]
    (folder / "blogs.csv").write_text("\n".join(lines) + "\n")
    (folder / "words.txt").write_text("\n".join(words) + "\n")
    for name in ("patients.csv", "blogs.csv", "words.txt"):
        os.chmod(folder / name, 0o644)


def prepare(made: Hosts, seed: int) -> None:
    for site in NAMES:
        write_data(made.home(site), site, seed)
    made.at_all(PREPARE)
    keys = {site: json.loads((made.home(site) / "public.json").read_text())["key"] for site in NAMES}
    propose = PROPOSE
    for clients in (PEOPLE, BLOGS):
        sites = " ".join(f"--site {site}={key}:{clients}" for site, key in keys.items())
        propose = propose.replace(f"SITES_OF_{clients}", sites)
    made.says("a", "sh", "-ec", propose)
    made.at_all(JOIN)


TRIES = """
import json, os, socket, sys
found = {}
for name, target in json.loads(sys.argv[1]).items():
    try:
        if name.startswith("connect"):
            socket.create_connection(target, 5).close()
        else:
            os.listdir(target) if os.path.isdir(target) or name.startswith("list") else open(target).close()
        found[name] = "works"
    except OSError as error:
        found[name] = error.strerror or type(error).__name__
print(json.dumps(found))
"""
LISTEN = "import socket, time; s = socket.create_server(('', 7777)); print('listens', flush=True); time.sleep(3600)"


def walls(made: Hosts) -> dict[str, str]:
    """What site a gets when it tries to reach site b, and that b and the server reach what a does not."""
    listener = made.start("b", sys.executable, "-c", LISTEN, output="listener")
    until(lambda: "listens" in (made.home("b") / "listener").read_text(), 60)
    at_b = [made.address("b", 2), 7777]
    files = {"list": str(made.home("b")), "read": str(made.home("b") / "ledger.sqlite")}
    by_a = {"connect": at_b, "connect to the end at the server": [made.address("b", 1), PORT], **files}
    tried = {"a": by_a, "b": {"connect": at_b, **files}, "server": {"connect": at_b}}
    found = {
        name: json.loads(made.says(name, sys.executable, "-c", TRIES, json.dumps(of))) for name, of in tried.items()
    }
    listener.kill()
    assert {*found["b"].values(), *found["server"].values()} == {"works"}, found
    assert "works" not in found["a"].values(), found
    return found["a"]


def studies(made: Hosts) -> dict[str, Study]:
    return {name: read_study(made.home("a"), f"{name}.json") for name in STUDIES}


def runs_of(made: Hosts, weeks: int) -> Iterator[tuple[str, Study, int]]:
    """Name and study of each run: one of the mixture, and one of the histograms in each week."""
    for name, study in studies(made).items():
        for number in range(1, 1 + (weeks if name == "histograms" else 1)):
            yield name, study, number


def path(made: Hosts, site: str, study: Study, number: int) -> Path:
    return made.home(site) / "runs" / f"study-{study.digest.hex()[:16]}-{site}-{number}"


def serve(made: Hosts, weeks: int, kill: bool) -> dict[str, Any]:
    """All sites serve until all have ended all runs; which one was killed, and after which file."""
    command = ("fedcore", "site", "serve", "--local")
    serving = {site: made.start(site, *command) for site in NAMES}
    killed: dict[str, Any] = {}
    heads = [
        path(made, site, study, number) / "head.json" for _, study, number in runs_of(made, weeks) for site in NAMES
    ]

    def finished() -> bool:
        for site, process in serving.items():
            assert process.poll() is None, f"{site} ended: {(made.home(site) / 'output').read_text()[-2000:]}"
        if kill and not killed and (found := posted_first(made.log(), "b", "histograms", 2)):
            serving["b"].send_signal(signal.SIGKILL)
            serving["b"].wait()
            killed.update(site="b", after=found.path)
            time.sleep(5)
            serving["b"] = made.start("b", *command)
        return all(head.exists() and json.loads(head.read_text()).get("status") == "finished" for head in heads)

    until(finished, LIMIT)
    for process in serving.values():
        process.send_signal(signal.SIGTERM)
    for process in serving.values():
        process.wait(60)
    return killed


def posted_first(made: Sequence[Request], site: str, study: str, run: int) -> Request | None:
    """The request with the first answer of a site in a run, if it has come."""
    for one in made:
        file = FILE.search(one.path)
        if one.method == "PUT" and one.site == site and file and file["kind"] == "answer":
            if file["study"].endswith(study) and int(file["run"]) == run:
                return one
    return None


# --- what must hold ---------------------------------------------------------------------------------------------------


def same_everywhere(made: Hosts, weeks: int) -> int:
    """How many runs have ended at all sites with totals and states of the same bits. Raises AssertionError."""
    found = 0
    for _, study, number in runs_of(made, weeks):
        runs = [Run.open(path(made, site, study, number)) for site in NAMES]
        assert all(same_bits(runs[0], run) for run in runs[1:])
        found += 1
    return found


def charges(made: Hosts, weeks: int, killed: Mapping[str, Any]) -> list[str]:
    """What an independent replay finds in each ledger, in fractions. Raises AssertionError."""
    said = []
    for name, study, number in runs_of(made, weeks):
        for site in NAMES:
            population = Population.open(made.home(site) / STUDIES[name])
            account = REPLAY["replay"](REPLAY["reader"](url(made.home(site))), population.id)
            assert account.wrong == [], account.wrong
            run = account.runs[path(made, site, study, number).name]
            states = {key: state for key, state in run["states"].items() if state not in ("reserved", "returned")}
            spent = sum((run["prices"][key[:2]][0] for key in states), Fraction(0))
            planned = sum((price[0] for price in run["prices"].values()), Fraction(0))
            assert Fraction(study.rho) * (1 - Fraction(2, 10**12)) <= planned <= Fraction(study.rho), (
                site,
                name,
                number,
            )
            if spent != planned:  # a draw that was lost is charged again
                assert site == killed.get("site") and planned < spent <= 2 * planned, (site, name, number)
                said += [f"{site} was charged {float(spent / planned):.4g} times rho in run {number} of {name}"]
            assert open_ledger(url(made.home(site))).balance(population.id).rho_reserved == 0
    return said


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="a folder to make, which all users can reach")
    parser.add_argument("--weeks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="measure, without delay, cuts and kill")
    given = parser.parse_args(arguments)
    late, cuts = (0.0, 0.0) if given.cost else (LATE, CUTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is cleaned up
    with serving(hosts_at(given.dir.resolve()), delay=late, cuts=cuts, seed=given.seed) as made:
        prepare(made, given.seed)
        print("site a at site b:", walls(made), flush=True)
        killed = serve(made, given.weeks, kill=not given.cost)
        print("killed:", killed or "none", flush=True)
        print("runs with the same bits at all sites:", same_everywhere(made, given.weeks))
        print(
            "ledgers:", "; ".join(charges(made, given.weeks, killed)) or "each run at each site cost rho of the study"
        )
        for name in STUDIES:
            shown = json.loads(made.says("a", "fedcore", "study", "show", f"s3://{BUCKET}/{name}", "--json"))
            posted = {site["name"]: (site["files"], site["bytes"]) for site in shown["sites"]}
            print(name, shown["final_states"], posted)
        log = made.log()
        print(f"requests: {len(log)}, of which the relay has cut {sum(one.cut for one in log)}")
        print(*cost_table(log, NAMES, studies(made)), sep="\n")
        print(f"masks for 10,000 cells and a peer: {masks_ms():.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
