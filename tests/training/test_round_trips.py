"""How often a run over a network asks the store and the ledger: bounds, so that the numbers cannot creep up."""

from collections import Counter
from contextlib import contextmanager

import pytest

from fedcore.privacy.ledger import accounts
from fedcore.storage import remote_lock
from tests.command import private_population
from tests.conftest import small_counts
from tests.population.remote_places import copied
from tests.sessions import train

pytest.importorskip("upath", reason="universal-pathlib is not installed")
s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")


@pytest.fixture
def asked(monkeypatch):
    """{kind of request, or "transaction": number}"""
    counts, call, transaction = Counter(), s3fs.S3FileSystem._call_s3, accounts.db.transaction

    async def counting(self, method, *given, **more):
        counts[method] += 1
        return await call(self, method, *given, **more)

    @contextmanager
    def begun(*given, **more):
        counts["transaction"] += 1
        with transaction(*given, **more) as connection:
            yield connection

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counting)
    monkeypatch.setattr(accounts.db, "transaction", begun)
    monkeypatch.setattr(remote_lock, "SECONDS", 3600.0)  # no renewals in the middle
    return counts


def test_a_round_and_a_run_ask_the_store_and_the_ledger_no_more_than_they_must(s3, tmp_path, asked):
    population, _ = private_population(tmp_path / "p", small_counts(40), test=True)
    there, found = copied(population, f"{s3}/p"), []
    for rounds in (2, 3, 4):  # the first one also reads what describes the arrays
        asked.clear()
        settings = {"clusters": 2, "rounds": rounds, "epsilon": 0.5}
        more = {"runs": f"{s3}/{rounds}", "run_id": f"of-{rounds}", "test_noise": "a key", "cache_bytes": 0}
        run = train(there.location, tmp_path, "histograms", settings, **more)
        found.append(Counter(asked))
    a_round, once = found[2] - found[1], Counter(found[2])
    once.subtract({kind: number * run.round for kind, number in a_round.items()})
    assert run.status == "finished" and a_round == {
        "get_object": 3 * len(there.blocks) + 2,  # the arrays of each block; head and holder
        "head_object": 1,  # the version of the head, before it is read
        "put_object": 4,  # state, metrics, copy of the release; then the head
        "delete_object": 1,  # the state before the last one
        "transaction": 2,  # the charge, and the publication
    }
    # What died leaves objects. They are looked for once the rounds are done, as a process may die at its very end.
    most = {"get_object": 16, "put_object": 9, "list_objects_v2": 21, "head_object": 3, "transaction": 16}
    assert not +(once - Counter(most | {"delete_objects": 1})), once
