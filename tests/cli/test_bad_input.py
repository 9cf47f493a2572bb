"""Every way to go wrong, one row each: a named error that says what happened to what, exit code 2, no traceback, and
nothing left behind that a reader would take for whole: no population, no version, no run, no reservation, no output.
"""

import json
import os
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import FedcoreError
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url, open_ledger
from fedcore.rounds.caches import BLOCKS
from fedcore.rounds.engine import InProcessBackend
from fedcore.runs.store import Run
from fedcore.training.request import TrainRequest
from fedcore.training.session import concluding, start_run
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts, write_counts, write_population

SMALL = "--set clusters=2 --set rounds=2"
TRAIN = "train histograms p --local --run-id r"
PLAIN = "train paper_histograms p --local --run-id r --set algorithm=fedavg"
RESUME = "resume runs/r --local"
INGEST = "population ingest a.csv p --option features=3"
HALF = f"train histograms p --local --run-id half --set epsilon=3 {SMALL}"
SHOW, SET, RAISE = "budget show p", "budget set p --public-schema 'made up'", "budget raise p"


# --- what is there before a command ---------------------------------------------------------------------------------


def files(**contents):
    """Files by name; "__" stands for a dot. Text, bytes, or a function that writes the file."""

    def make(place: Path) -> None:
        for name, content in contents.items():
            path = place / name.replace("__", ".")
            if callable(content):
                content(path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def both(*makers):
    def make(place: Path) -> None:
        for maker in makers:
            maker(place)

    return make


def counts(place: Path) -> None:
    """A population without a ledger."""
    write_counts(place / "p", small_counts())


def rows(place: Path) -> None:
    write_population(place / "p", "rows", 2, ["ann", "bob"], (np.array([0, 1, 2]), np.ones((2, 2))))


def private(place: Path, **options) -> None:
    private_population(place / "p", small_counts(), **options)


def no_budget(place: Path) -> None:
    private(place, epsilon=None)


def nobody_declared(place: Path) -> None:
    private(place, nominal=None)


def spent(place: Path) -> None:
    """A run took all that there was, but for what rounding left."""
    private(place)
    works(f"train histograms p --local --run-id all --set spare_releases=0 {SMALL}")


def half_spent(place: Path) -> None:
    private(place, epsilon=4.0)
    works(HALF)


def trained(place: Path) -> None:
    counts(place)
    works(PLAIN)


def scored(place: Path) -> None:
    """A run, and a population with held-out data that is not public."""
    write_counts(place / "p", small_counts(), heldout=small_counts(seed=1))
    works(PLAIN)


def public_without_heldout(place: Path) -> None:
    write_counts(place / "p", small_counts(), public_for_evaluation="made up")
    works(PLAIN)


def other_features(place: Path) -> None:
    trained(place)
    wide = small_counts(features=9)
    write_counts(place / "q", wide, heldout=wide, public_for_evaluation="made up")


def begun(place: Path, method: str, **settings):
    """The session of run r, before its first round."""
    given = {"population": str(place / "p"), "runs": str(place / "runs"), "run_id": "r", "settings": settings}
    return start_run(TrainRequest(method=method, **given), InProcessBackend(), stamp="then")


def unstarted(place: Path) -> None:
    """A run that has its first state and no round."""
    counts(place)
    begun(place, "paper_histograms", algorithm="fedavg").close()


def interrupted(place: Path) -> None:
    """A private run that was interrupted before its first round."""
    private(place)
    with pytest.raises(KeyboardInterrupt), concluding(begun(place, "histograms", clusters=2, rounds=2)):
        raise KeyboardInterrupt


def ledger_file(place: Path) -> Path:
    return place / "ledger.sqlite"


def in_the_ledger(place: Path, statement: str, *values) -> None:
    connection = sqlite3.connect(ledger_file(place))
    with connection:
        connection.execute(statement, values)
    connection.close()


def deleted_ledger(place: Path) -> None:
    private(place)
    for path in place.glob("ledger.sqlite*"):
        path.unlink()


def another_ledger(place: Path) -> None:
    deleted_ledger(place)
    create_ledger(default_ledger_url())


def no_ledger_but_a_text(place: Path) -> None:
    deleted_ledger(place)
    ledger_file(place).write_text("not a database " * 100)


def forged_budget(place: Path) -> None:
    private(place)
    in_the_ledger(place, "UPDATE fedcore_accounts SET rho_max = rho_max * 100, epsilon = 800")


def forged_record(place: Path) -> None:
    half_spent(place)
    in_the_ledger(place, "UPDATE fedcore_records SET payload = replace(payload, '4.0', '9') WHERE kind = 'budget set'")


def forgotten_charges(place: Path) -> None:
    half_spent(place)
    in_the_ledger(place, "UPDATE fedcore_releases SET state = 'returned'")


def forged_release(place: Path) -> None:
    half_spent(place)
    in_the_ledger(place, "UPDATE fedcore_published SET data = zeroblob(length(data))")


def copy_ledger(place: Path) -> None:
    connection = sqlite3.connect(ledger_file(place))
    connection.execute("VACUUM INTO ?", (str(place / "old.sqlite"),))
    connection.close()


def put_the_copy_back(place: Path) -> None:
    for path in place.glob("ledger.sqlite*"):
        path.unlink()
    (place / "old.sqlite").rename(ledger_file(place))


def rolled_back(place: Path) -> None:
    """An old copy of the ledger is put back after a run."""
    private(place, epsilon=4.0)
    copy_ledger(place)
    works(HALF)
    put_the_copy_back(place)


def witness_forgotten(place: Path) -> None:
    """An old copy of the ledger, and the note beside the population is gone too; an interrupted run remembers."""
    private(place)
    copy_ledger(place)
    session = begun(place, "histograms", clusters=2, rounds=2)
    with pytest.raises(KeyboardInterrupt), concluding(session):
        session.training.step()
        raise KeyboardInterrupt
    put_the_copy_back(place)
    (place / "p" / "ledger-head.json").unlink()


def damaged_witness(place: Path) -> None:
    private(place)
    (place / "p" / "ledger-head.json").write_text('{"seq":')


def broken_manifest(place: Path) -> None:
    counts(place)
    path = place / "p" / "versions" / "000001.json"
    path.write_text(path.read_text().replace('"features": 7', '"features": 8'))


def torn_manifest(place: Path) -> None:
    counts(place)
    path = place / "p" / "versions" / "000001.json"
    path.write_bytes(path.read_bytes()[:200])


def damaged_vocabulary(place: Path) -> None:
    write_counts(place / "p", small_counts(), vocabulary=list("abcdefg"))
    (word_file,) = (place / "p" / "vocabularies").iterdir()
    word_file.write_text("x\n" * 7)


def text_folder(**texts):
    def make(place: Path) -> None:
        (place / "texts").mkdir()
        files(**texts)(place / "texts")
        (place / "words.txt").write_text("the\ncat\n")

    return make


def table(*lines: str, head: str = "client,token,count") -> str:
    return "\n".join([head, *lines]) + "\n"


one_row = files(a__csv=table("ann,0,1"))


def npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def ragged(path: Path) -> None:
    """Rows of different length: an array of objects, which only pickle could read."""
    rows = np.empty(2, object)
    rows[:] = [np.ones(2), np.ones(3)]
    np.savez(path, x=rows, client=np.array(["ann", "bob"]))


def torn(path: Path) -> None:
    sp.save_npz(path, small_counts().tocsr())
    path.write_bytes(path.read_bytes()[:300])


# --- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """what: the row's name. before: makes what is there. error: its class, then words of the message or the remedy,
    separated by " | ". later: a command that must work afterwards, if any.
    """

    what: str
    before: object
    command: str
    error: str
    later: str = ""


def bad_count(what: str, value: str, says: str) -> Row:
    counts = files(a__csv=table("ann,0,1", f"ann,1,{value}"))
    return Row(f"{what} count", counts, INGEST, f"IngestError | a.csv, line 3 | {says}")


def setting(what: str, pair: str, words: str) -> Row:
    return Row(what, counts, f"{TRAIN} --set {pair}", f"ConfigError | {words}")


def toml(what: str, text: str, words: str) -> Row:
    return Row(f"deployment: {what}", files(d__toml=text), "serve d.toml", f"ConfigError | d.toml | {words}")


def array(what: str, content, words: str) -> Row:
    return Row(what, files(a__npz=content), "population ingest a.npz p", f"IngestError | {words}")


def outputs(what: str, before, dest: str, error: str) -> Row:
    return Row(what, before, f"personalise runs/r p {dest}", error)


ENTRY = '[[deployment]]\nname = "a"\nmethod = "histograms"\npopulation = "p"\n'

TABLE = [
    # what is ingested
    bad_count("NaN", "nan", "the count is nan"),
    bad_count("infinite", "inf", "the count is inf"),
    bad_count("negative", "-1", "negative"),
    bad_count("fractional", "1.5", "not a whole number"),
    bad_count("textual", "many", "not a number"),
    bad_count("enormous", "1e17", "above 2**53"),
    Row(
        "negative count in an array",
        files(a__npz=npz(x=-np.ones((2, 3)), client=np.array(["a", "b"]))),
        "population ingest a.npz p --kind counts",
        "IngestError | a.npz | negative",
    ),
    Row("token out of range", files(a__csv=table("ann,3,1")), INGEST, "IngestError | line 2 | feature id 3"),
    Row(
        "infinite value in rows",
        files(a__csv=table("ann,1,inf", head="client,x,y")),
        "population ingest a.csv p",
        "IngestError | line 2 | y is infinite",
    ),
    array("wrong dtype", npz(x=np.array([["a", "b"]]), client=np.array(["ann"])), "a.npz | not rows of numbers"),
    array("wrong shape", npz(x=np.ones(4), client=np.array(list("abcd"))), "(4,) | (rows, features)"),
    array(
        "ids that do not fit", npz(x=np.ones((4, 2)), client=np.array(["ann"])), "not one client id for each of 4 rows"
    ),
    array("ragged array", ragged, "Python objects"),
    Row(
        "ragged line", files(a__csv=table("ann,0,1", "bob,1")), INGEST, "IngestError | line 3 | 2 columns instead of 3"
    ),
    Row(
        "missing column",
        files(a__csv=table("ann,0", head="user,token")),
        INGEST,
        "IngestError | no column 'client' | user, token",
    ),
    array("missing array", npz(y=np.ones((2, 2))), "no array 'x'"),
    Row(
        "missing file",
        files(),
        "population ingest nowhere.csv p --option features=3",
        "IngestError | nowhere.csv | Check the path",
    ),
    Row(
        "missing vocabulary file",
        text_folder(a__txt="the cat"),
        "population ingest texts p --vocabulary none.txt",
        "IngestError | none.txt",
    ),
    Row("no vocabulary", text_folder(a__txt="the cat"), "population ingest texts p", "IngestError | vocabulary"),
    Row(
        "text that is none",
        text_folder(a__txt=b"the \xff cat"),
        "population ingest texts p --vocabulary words.txt",
        "IngestError | a.txt | UTF-8",
    ),
    Row("empty file", files(a__csv=""), INGEST, "IngestError | a.csv | empty"),
    Row("head without rows", files(a__csv=table()), INGEST, "IngestError | holds no client"),
    Row("empty folder", files(texts=Path.mkdir), "population ingest texts p", "IngestError | holds no file"),
    array("torn matrix", torn, "whole"),
    Row("unknown format", files(a__xyz="?"), "population ingest a.xyz p", "IngestError | not clear | Name the format"),
    Row("an unknown kind", one_row, f"{INGEST} --kind graphs", "ConfigError | 'graphs' | counts"),
    Row("population exists", counts, INGEST, "IngestError | a.csv"),
    Row(
        "a folder that is none of ours",
        both(one_row, files(p=Path.mkdir, **{"p/thesis.tex": "x"})),
        INGEST,
        "PopulationError | not empty | p",
    ),
    Row("nonsense of memory", one_row, f"{INGEST} --memory lots", "ConfigError | 'lots' | 512MiB"),
    Row("infinite memory", one_row, f"{INGEST} --memory 1e999", "ConfigError | '1e999'"),
    Row(
        "too little memory",
        one_row,
        f"{INGEST} --memory 1KiB",
        "ConfigError | 'memory' | 1024 | a whole number from 16777216",
    ),
    Row("unknown option", one_row, f"{INGEST} --option colour=red", "ConfigError | 'colour' | features"),
    Row(
        "option of the wrong type",
        one_row,
        f"{INGEST} --option clients_per_leaf=few",
        "ConfigError | 'clients_per_leaf' | whole number | 'few'",
    ),
    Row("number where text belongs", one_row, f"{INGEST} --option heldout=5", "ConfigError | 'heldout' | is text"),
    Row("long delimiter", one_row, f"{INGEST} --option delimiter=ab", "ConfigError | one character | 'ab'"),
    Row("fractional features", one_row, f"{INGEST} --option features=3.5", "ConfigError | 'features' | 3.5"),
    Row("an address that is none", one_row, f"{INGEST} --ledger here", "LedgerError | 'here' | sqlite:///"),
    Row("public without a reason", one_row, f"{INGEST} --public-for-evaluation ''", "ManifestError | reason"),
    Row("append to nothing", one_row, "population ingest a.csv p --append", "PopulationNotFound | p"),
    Row("append of another width", both(counts, one_row), f"{INGEST} --append", "IngestError | features"),
    Row("unknown preset", files(), "population generate twitter-like p", "ConfigError | twitter-like | reddit-like"),
    Row(
        "unknown setting of a preset",
        files(),
        "population generate pure p --set colour=1",
        "ConfigError | 'colour' | clusters",
    ),
    Row(
        "setting of a preset out of range",
        files(),
        "population generate pure p --set gamma=-1",
        "ConfigError | 'gamma' | greater than 0",
    ),
    # populations that cannot be used
    Row("no population", files(), PLAIN, "PopulationNotFound | p"),
    Row("no such version", counts, f"{PLAIN} --version 7", "PopulationNotFound | version 7 | It has 1"),
    Row("altered manifest", broken_manifest, PLAIN, "ManifestError | 000001.json | checksum"),
    Row("torn manifest", torn_manifest, PLAIN, "ManifestError | 000001.json | JSON"),
    Row("torn manifest described", torn_manifest, "population describe p", "ManifestError | 000001.json"),
    Row("wrong kind", rows, PLAIN, "WrongKind | counts | rows | 'p'"),
    # settings
    setting("unknown setting", "colour=3", "'colour' | fedcore methods histograms"),
    setting("setting out of range", "clusters=0", "'clusters' | greater than or equal to 1 | 0"),
    setting("setting of the wrong type", "rounds=many", "'rounds' | 'many'"),
    setting("NaN setting", "epsilon=nan", "'epsilon' | nan"),
    setting("settings that disagree", "overseed=0", "'overseed'"),
    setting("no equals sign", "epsilon", "'epsilon' | key=value"),
    setting("no key", "=3", "'=3' | key=value"),
    Row(
        "broken TOML",
        both(counts, files(c__toml="a = = 1")),
        f"{TRAIN} --config c.toml",
        "ConfigError | c.toml | not valid TOML | line 1",
    ),
    Row(
        "TOML that is no text",
        both(counts, files(c__toml=b"a = '\xff'")),
        f"{TRAIN} --config c.toml",
        "ConfigError | c.toml | not valid TOML",
    ),
    Row("missing TOML", counts, f"{TRAIN} --config c.toml", "ConfigError | c.toml | No such file"),
    Row("unknown method", counts, "train magic p --local", "ConfigError | 'magic' | histograms"),
    Row("unknown method shown", files(), "methods magic", "ConfigError | 'magic' | histograms"),
    Row("a run name that is a path", counts, f"{PLAIN} --run-id ../r", "ConfigError | 'run_id' | '../r'"),
    Row("a negative cache", counts, f"{PLAIN} --cache -1MiB", "ConfigError | '-1MiB'"),
    Row("a plan with an empty start", counts, "plan histograms p --start-from ''", "ConfigError | 'start_from'"),
    Row("an empty key of test noise", counts, f"{PLAIN} --test-noise ''", "ConfigError | 'test_noise'"),
    Row("runs in a file", both(counts, files(runs="")), PLAIN, "RunError | 'runs'"),
    # budgets
    Row("no ledger", counts, TRAIN, "LedgerMissing | has no ledger"),
    Row("no budget", no_budget, TRAIN, "BudgetMissing | 'p' | fedcore budget set p", f"{SET} --epsilon 1 --delta 1e-6"),
    Row("budget used up", spent, TRAIN, "BudgetExceeded | 'p' | used up | Nothing was released"),
    Row(
        "more than is left",
        half_spent,
        f"{TRAIN} --set epsilon=3.9",
        "BudgetExceeded | epsilon = 3.9 | Nothing was released | Lower epsilon to",
        f"{TRAIN} --set epsilon=0.1 {SMALL}",
    ),
    Row("more than there ever was", private, f"{TRAIN} --set epsilon=50", "BudgetExceeded | epsilon = 50"),
    Row(
        "a second budget",
        private,
        f"{SET} --epsilon 9 --delta 1e-6",
        "BudgetExists | epsilon = 8 | fedcore budget raise",
    ),
    Row("a lower budget", private, f"{RAISE} --epsilon 7 --delta 1e-6", "BudgetExists | epsilon = 8 | never lowered"),
    Row("the same budget", private, f"{RAISE} --epsilon 8 --delta 1e-6", "BudgetExists | not a raise"),
    Row("a lower delta", private, f"{RAISE} --epsilon 9 --delta 1e-7", "BudgetExists | not a raise"),
    Row(
        "a raise without a budget",
        no_budget,
        f"{RAISE} --epsilon 9 --delta 1e-6",
        "BudgetMissing | no budget | budget set",
    ),
    *(
        Row(
            f"epsilon = {value}",
            no_budget,
            f"{SET} --epsilon {value} --delta 1e-6",
            "ConfigError | epsilon must be positive and finite",
        )
        for value in ("0", "-1", "nan", "inf")
    ),
    *(
        Row(
            f"delta = {value}",
            no_budget,
            f"{SET} --epsilon 1 --delta {value}",
            "ConfigError | delta must be between 0 and 1",
        )
        for value in ("0", "1", "-1e-6", "nan")
    ),
    Row(
        "delta_extra above delta",
        no_budget,
        f"{SET} --epsilon 1 --delta 1e-6 --delta-extra 1e-5",
        "ConfigError | delta_extra",
    ),
    Row("epsilon of a run of 0", private, f"{TRAIN} --set epsilon=0", "ConfigError | 'epsilon' | greater than 0"),
    Row(
        "nobody declared a size",
        nobody_declared,
        TRAIN,
        "ConfigError | declared number of clients | nominal_clients",
        f"{TRAIN} --set nominal_clients=1000 {SMALL}",
    ),
    Row("test noise for people", private, f"{TRAIN} --test-noise key", "PrivacyError | test noise | for people"),
    # ledgers
    Row("ledger deleted", deleted_ledger, TRAIN, "LedgerMissing | ledger.sqlite | backup"),
    Row("ledger deleted, shown", deleted_ledger, SHOW, "LedgerMissing | ledger.sqlite"),
    Row("another ledger", another_ledger, TRAIN, "LedgerMissing | is needed | FEDCORE_LEDGER"),
    Row("ledger overwritten", no_ledger_but_a_text, TRAIN, "LedgerError | not a ledger | backup"),
    Row("budget forged", forged_budget, f"{TRAIN} {SMALL}", "LedgerTampered | budget | chain"),
    Row("budget forged, shown", forged_budget, SHOW, "LedgerTampered | budget"),
    Row("record forged", forged_record, f"{TRAIN} --set epsilon=0.5 {SMALL}", "LedgerTampered | record 2 | hash"),
    Row("charges forgotten", forgotten_charges, f"{TRAIN} --set epsilon=0.5 {SMALL}", "LedgerTampered | flat_mean"),
    Row("release forged, shown", forged_release, SHOW, "LedgerTampered | published value"),
    Row(
        "ledger rolled back",
        rolled_back,
        f"{TRAIN} --set epsilon=3 {SMALL}",
        "LedgerRolledBack | older copy | newest copy",
    ),
    Row("ledger rolled back, shown", rolled_back, SHOW, "LedgerRolledBack | older copy"),
    Row(
        "ledger rolled back, budget raised",
        rolled_back,
        f"{RAISE} --epsilon 9 --delta 1e-6",
        "LedgerRolledBack | older copy",
    ),
    Row("ledger rolled back, known to a run only", witness_forgotten, RESUME, "LedgerRolledBack | older copy"),
    Row("witness damaged", damaged_witness, TRAIN, "LedgerRolledBack | ledger-head.json | backup"),
    # runs
    Row("resume of a finished run", trained, RESUME, "RunError | 'r' | finished | nothing to resume"),
    Row("abandon of a finished run", trained, "runs abandon runs/r", "RunError | 'r' | finished"),
    Row("a name in use", trained, PLAIN, "RunError | 'r' | exists already | another name"),
    *(
        Row(f"unknown run: {command.split('runs/none')[0]}", counts, command, "RunNotFound | runs/none")
        for command in (
            "resume runs/none --local",
            "runs show runs/none",
            "runs abandon runs/none",
            "report runs/none",
            "personalise runs/none p out",
            "evaluate runs/none p --not-private s.json",
        )
    ),
    Row(
        "a run whose head is damaged",
        both(trained, files(**{"runs/r/head.json": "{"})),
        "runs show runs/r",
        "RunError | head.json",
    ),
    Row(
        "resume with the ledger gone",
        both(interrupted, files(ledger__sqlite=Path.unlink)),
        RESUME,
        "LedgerMissing | ledger.sqlite",
    ),
    Row("resume with the population gone", both(interrupted, files(p=shutil.rmtree)), RESUME, "PopulationNotFound | p"),
    # outputs and scores
    outputs(
        "output folder exists", both(trained, files(out=Path.mkdir)), "out", "PopulationError | 'out' | exists already"
    ),
    outputs(
        "outputs in a file of another kind", trained, "out.txt", "ConfigError | '.txt' | 'out.txt' | .parquet, .csv"
    ),
    outputs(
        "outputs in a folder with the name of a file",
        trained,
        "out.csv/",
        "ConfigError | 'out.csv/' | ends like a file",
    ),
    outputs(
        "output file exists",
        both(trained, files(out__csv="mine")),
        "out.csv",
        "PopulationError | out.csv | exists already",
    ),
    outputs(
        "a file of somebody beside the output file",
        both(trained, files(out__csv__about__json='{"mine": 1}')),
        "out.csv",
        "PopulationError | out.csv.about.json | exists already",
    ),
    outputs(
        "outputs with a setting that acted on training",
        trained,
        "out --set algorithm=ifca",
        "ConfigError | 'algorithm' of method 'paper_histograms' acts on training | prior_tokens, floor, weights",
    ),
    Row(
        "scores with a setting that acted on training",
        scored,
        "evaluate runs/r p --not-private scores.json --set algorithm=ifca",
        "ConfigError | 'algorithm' of method 'paper_histograms' acts on training | prior_tokens, floor, weights",
    ),
    outputs("output below a file", both(trained, files(out="")), "out/here", "PopulationError | 'out/here'"),
    Row(
        "output for another width",
        other_features,
        "personalise runs/r q out",
        "WrongKind | 7 features | holds counts with 9",
    ),
    outputs("output of a run without rounds", unstarted, "out", "RunError | not finished a round | Resume"),
    Row("scores of people", scored, "evaluate runs/r p --local", "PrivacyError | not declared public | --not-private"),
    Row(
        "scores without held-out data",
        public_without_heldout,
        "evaluate runs/r p --local",
        "PopulationError | no held-out part",
    ),
    Row("scores for another width", other_features, "evaluate runs/r q --local", "WrongKind | 9"),
    Row(
        "scores into a folder that is not there",
        scored,
        "evaluate runs/r p --not-private no/s.json",
        "PopulationError | 'no/s.json' | No such file",
    ),
    # deployments
    Row("deployment: missing file", files(), "serve d.toml", "ConfigError | d.toml | No such file"),
    toml("broken", "[[deployment", "not valid TOML"),
    toml("none", "", "deployment"),
    toml("unknown key", ENTRY + "colour = 1\n", "'deployment.0.colour' is not a setting | docs/deployments.md"),
    toml("two schedules", ENTRY + 'schedule = { cron = "0 3 * * *", interval = 60 }\n', "exactly one of cron"),
    toml("no schedule in it", ENTRY + "schedule = { }\n", "exactly one of cron"),
    toml("the same name twice", ENTRY + ENTRY, "same name"),
    Row(
        "deployment: unknown method",
        files(d__toml=ENTRY.replace("histograms", "magic")),
        "serve d.toml",
        "ConfigError | 'magic'",
    ),
    Row(
        "deployment: bad setting",
        files(d__toml=ENTRY + "[deployment.config]\nepsilon = -1\n"),
        "serve d.toml",
        "ConfigError | 'epsilon' | greater than 0",
    ),
]


def visible(place: Path) -> dict:
    """What readers of the place would take for whole."""
    ledger = None
    if ledger_file(place).exists():
        try:
            with sqlite3.connect(f"file:{ledger_file(place)}?mode=ro", uri=True) as connection:
                tables = ("accounts", "records", "runs", "releases", "published")
                ledger = [list(connection.execute(f"SELECT * FROM fedcore_{name} ORDER BY 1, 2")) for name in tables]
        except sqlite3.Error as error:
            ledger = str(error)
    return {
        "versions": {str(path): path.read_bytes() for path in sorted(place.glob("*/versions/*.json"))},
        "runs": {str(path): (path.parent / "head.json").read_bytes() for path in sorted(place.glob("runs/*/run.json"))},
        "states": sorted(str(path) for path in place.glob("runs/*/state/*")),
        "ledger": ledger,
        "places": sorted(path.name for path in place.iterdir() if not path.name.startswith(("ledger.sqlite", "runs"))),
        "partial": sorted(str(path) for path in place.rglob("*.partial")),
    }


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.what)
def test_every_mistake_is_named_and_leaves_nothing_behind(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row.before(tmp_path)
    before, variables = visible(tmp_path), {**os.environ}
    outcome = fedcore(row.command)
    assert outcome.code == 2, (outcome.out, outcome.err)
    error, *words = row.error.split(" | ")
    assert {**os.environ} == variables | {"PYTEST_CURRENT_TEST": os.environ["PYTEST_CURRENT_TEST"]}
    assert f"{error}: " in outcome.err and "Traceback" not in outcome.err
    assert error in {cls.__name__ for cls in _errors(FedcoreError)}
    assert not [word for word in words if word not in outcome.err], outcome.err
    after = visible(tmp_path)
    if before["ledger"] is None:  # an empty ledger may have been made for a population that was not
        assert after["ledger"] in (None, [[], [], [], [], []])
    else:
        assert after["ledger"] == before["ledger"]
    assert {**after, "ledger": None} == {**before, "ledger": None}
    if row.later:
        works(row.later)


def _errors(cls: type) -> list[type]:
    return [cls, *(found for child in cls.__subclasses__() for found in _errors(child))]


def test_json_says_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    private(tmp_path)
    outcome = fedcore(f"{TRAIN} --set epsilon=50 --json")
    assert outcome.code == 2 and outcome.json["error"] == "BudgetExceeded"
    assert outcome.json["message"] in outcome.err and outcome.json["remedy"] in outcome.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.npy"])
def test_an_unreadable_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(table("ann,0,1"))
    (tmp_path / name).chmod(0)
    outcome = fedcore(INGEST.replace("a.csv", name))
    assert outcome.code == 2 and "IngestError" in outcome.err and name in outcome.err
    assert not (tmp_path / "p").exists()


# --- not mistakes ---------------------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, list[float]]:
    population, found = Population.open(path), {}
    for index in range(len(population.blocks)):
        dense = population.read(index).csr.toarray()
        found |= {str(name): row for name, row in zip(population.client_ids(index), dense.tolist(), strict=True)}
    return found


def test_a_client_in_several_files_is_added_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    files(a__csv=table("ann,0,1", "bob,2,1", "ann,0,2"), b__csv=table("ann,0,4", "ann,1,1"))(tmp_path / "in")
    assert works("population ingest in p --option features=3 --json").json["clients"] == 2
    assert contents(tmp_path / "p") == {"ann": [7, 1, 0], "bob": [0, 0, 1]}


def test_empty_clients_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text_folder(full__txt="the cat the", empty__txt="", strange__txt="42")(tmp_path)
    made = works("population", "ingest", "texts", "p", "--vocabulary", "words.txt", "--json").json
    assert made["clients"] == 3
    assert contents(tmp_path / "p") == {"full.txt": [2, 1], "empty.txt": [0, 0], "strange.txt": [0, 0]}
    assert works(f"{PLAIN} --json").json["metrics"]["clients"] == 1


def test_tolerated_rows_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(a__csv=table("ann,0,1", "ann,1,nan", "bob,2,-3"))(tmp_path)
    assert fedcore(f"{INGEST} --tolerance 1").code == 2
    assert works(f"{INGEST} --tolerance 2 --json").json["bad_rows"] == 2


# --- data that are damaged while a run goes on ----------------------------------------------------------------------


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("array", ["counts", "indices", "indptr"])
@pytest.mark.parametrize("damage", [truncated, flipped, Path.unlink], ids=["truncated", "flipped", "missing"])
def test_a_damaged_block_ends_a_private_run_before_anything_is_charged(tmp_path, monkeypatch, damage, array):
    """The run is there, marked as failed; its reservation waits for a restored block, or goes back by `abandon`."""
    monkeypatch.chdir(tmp_path)
    private(tmp_path)
    victim = sorted((tmp_path / "p" / "blocks").glob(f"*/train/{array}/c/0"))[2]
    whole = victim.read_bytes()
    damage(victim)
    outcome = fedcore(f"{TRAIN} {SMALL}")
    assert outcome.code == 2 and "ChunkError: Block 2 " in outcome.err and "backup" in outcome.err
    run = Run.open(tmp_path / "runs" / "r")
    assert run.status == "failed" and run.round == 0 and not run.releases()
    balance = open_ledger(default_ledger_url()).verify(Population.open(tmp_path / "p").id)
    assert balance.rho_spent == 0 and balance.releases == {"reserved": 4} and balance.open_runs == ("r",)
    assert json.loads(works("runs", "show", "runs/r", "--json").out)["private"] is False
    if damage is flipped:
        victim.write_bytes(whole)
        assert works(f"{RESUME} --json").json["status"] == "finished"
    else:
        works("runs", "abandon", "runs/r")
        assert works(f"{SHOW} --json").json["rho_left"] == balance.budget.rho_max


def test_a_damaged_block_of_a_personalisation_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path)
    flipped(sorted((tmp_path / "p" / "blocks").glob("*/train/counts/c/0"))[-1])
    BLOCKS.clear()  # those of the training, which another process would not have
    before = visible(tmp_path)
    outcome = fedcore("predict", "runs/r", "p", "out")
    assert outcome.code == 2 and "ChunkError" in outcome.err and visible(tmp_path) == before


def test_a_damaged_vocabulary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    damaged_vocabulary(tmp_path)
    outcome = fedcore(PLAIN)
    assert outcome.code == 2 and "ManifestError" in outcome.err and "checksum" in outcome.err
