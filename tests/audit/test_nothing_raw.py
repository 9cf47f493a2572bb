"""Nothing raw leaves a private run: a flow with Dask workers runs in a world of its own, and everything written there
is searched for the canary's name, its number of tokens, and the exact sums of every round.

What is searched: Prefect's database and result store, its logs, stdout and stderr of flow and workers, Dask's worker
folders (kept before every step of the server), the run's folder with its report, the ledger. Not searched: the
population, where the data are.
"""

import base64
import gzip
import io
import json
import struct
import zipfile
import zlib

import numpy as np
import pytest
from numcodecs.zstd import Zstd

from fedcore.runs.store import Run
from tests.audit.search import Secrets, search
from tests.audit.world import TOKENS, canary_name, make_worlds, secrets_of

METHODS = {
    "honest": "fedcore.methods.histograms:Histograms",
    "careless": "tests.audit.sabotage:Careless",
    "telling": "tests.audit.sabotage:Telling",
    "keeping": "tests.audit.sabotage:Keeping",
}
ON_WORKERS = ("honest", "careless")  # the others leak on the server, in the flow's process
DATABASE, LEDGER = "home/prefect/prefect.db", "ledger.sqlite"


# --- the search itself ----------------------------------------------------------------------------------------------

NUMBER = 1234567890123


def zipped(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("member", data)
    return out.getvalue()


@pytest.mark.parametrize(
    "packed",
    [
        lambda data: data,
        lambda data: b"abc" + data + b"abc",
        zipped,
        zlib.compress,
        gzip.compress,
        lambda data: bytes(Zstd().encode(data)),
        lambda data: b"x" * 13 + zlib.compress(data) + b"after",
        lambda data: b'{"a": "' + base64.b64encode(zlib.compress(data + bytes(range(99)))) + b'"}',
        lambda data: zipped(zipped(data)),
        lambda data: zlib.compress(data * 2000)[:-8],
    ],
    ids=["plain", "inside", "zip", "zlib", "gzip", "zstd", "zlib inside", "base64 of zlib", "zip of zip", "cut"],
)
@pytest.mark.parametrize(
    "form",
    [
        b"a person's name",
        b'{"x": 1234567890123}',
        b"[1.2e3, 1234567890123.0, 7]",
        b"total=1.234567890123e12;",
        struct.pack("<q", NUMBER),
        struct.pack(">q", NUMBER),
        struct.pack("<d", NUMBER),
        b"-" + struct.pack(">d", NUMBER),
    ],
)
def test_the_search_finds_every_form_however_it_is_packed(packed, form):
    secrets = Secrets({b"person's"}, {NUMBER})
    assert secrets.found_in(packed(form + b"          "))
    assert not Secrets({b"nobody"}, {NUMBER + 1}, {7.5e99}).found_in(packed(form + b"          "))


def test_random_bytes_and_random_text_hold_no_secret():
    """5 MB of each against 1000 numbers: a search that alarms by chance would be switched off."""
    generator = np.random.default_rng(0)
    secrets = Secrets(
        {b"canary"},
        set(generator.integers(2**26, 2**33, 1000).tolist()),
        set(generator.uniform(100, 40_000, 200).tolist()),
    )
    assert not secrets.found_in(generator.bytes(5_000_000))
    assert not secrets.found_in(json.dumps(generator.uniform(0, 1e6, 250_000).tolist()).encode())


# --- a whole world --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worlds(tmp_path_factory, prefect_database):
    folder = tmp_path_factory.mktemp("worlds")
    make_worlds(folder, METHODS, ON_WORKERS, prefect_database)
    return folder


@pytest.fixture(scope="module")
def secrets(worlds):
    """Of each world. What a sabotaged one prints is in the same files: its sums are not those of the honest one."""
    found = {world: secrets_of(worlds, world) for world in METHODS}
    honest, others = found["honest"], [found[world] for world in METHODS if world != "honest"]
    whole = honest.whole.difference(*(other.whole for other in others)) | {TOKENS}
    assert len(whole) > 0.9 * len(honest.whole), "they have few numbers in common, by chance"
    found["honest"] = Secrets(honest.words, whole, honest.real.difference(*(other.real for other in others)))
    return found


@pytest.fixture(scope="module")
def leaks(worlds, secrets):
    """Where the secrets of each world are found; and what may be there: published values, and names and numbers that
    places are bound to hold.
    """
    run = Run.open(worlds / "runs" / "honest")
    values = {int(value) for array in run.releases().values() for value in array.ravel()}
    public = {"values": Secrets(set(), values), "name": Secrets({b"honest"})}
    public["row"] = Secrets(real={run.metrics()[-1]["released_count"]})
    return search(worlds, secrets | public, ("populations",))


@pytest.mark.slow
@pytest.mark.prefect
def test_an_honest_run_leaves_nothing_raw_anywhere(secrets, leaks):
    honest = secrets["honest"]
    assert len(honest.in_bytes) > 50 and TOKENS in honest.in_bytes and len(honest.units) > 30
    assert leaks["honest"] == {}


@pytest.mark.slow
@pytest.mark.prefect
def test_the_search_reaches_every_place(worlds, leaks):
    names = Run.open(worlds / "runs" / "honest").releases()
    assert {f"runs/honest/releases/{name}.zip" for name in names} <= leaks["values"].keys()
    assert any(name.startswith(LEDGER) for name in leaks["values"])
    assert {"err", "runs/honest/run.json", "runs/honest/report.html"} <= leaks["name"].keys()
    assert any(name.startswith(DATABASE) for name in leaks["name"])
    assert any("worker" in path.name for path in (worlds / "kept").iterdir()), "Dask's folders of workers were seen"
    assert {"runs/honest/metrics.jsonl"} <= leaks["row"].keys()


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.parametrize(
    ("world", "places"),
    [
        ("careless", ["out", "kept", "temporary"]),
        ("telling", ["runs/telling/metrics.jsonl"]),
        ("keeping", ["runs/keeping/state"]),
    ],
)
def test_what_a_sabotaged_method_leaves_is_found(leaks, world, places):
    found = leaks[world]
    for place in places:
        assert any(name.startswith(place) for name in found), (place, found.keys())
    assert not any(canary_name(world) in word for words in found.values() for word in words)
