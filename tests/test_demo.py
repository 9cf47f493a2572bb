"""The demo: its populations from a made-up installation, and the whole of it on the real one."""

import json

import numpy as np
import pytest

from fedcore.cli import demo_data as demo
from fedcore.errors import IngestError
from fedcore.population.store import Population
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.training.budget import ledger_of
from tests.command import fedcore, works

LIBRARY = {"os.py": "import sys\ndef path(): pass\n", "sys.py": "import os\nimport sys sys\n", "empty.py": ""}


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """Three files of a standard library and 300 of packages, each of which repeats one known word on its two lines."""
    library, packages = tmp_path / "library", tmp_path / "packages"
    for folder in (library, packages):
        folder.mkdir()
    for name, text in LIBRARY.items():
        (library / name).write_text(text)
    for number in range(300):
        text = f"import unknown{number}\ndef def def" + " sys" * (number % 3) + "\n"
        (packages / f"m{number:03d}.py").write_text(text)
    monkeypatch.setattr(demo, "library_files", lambda: sorted(library.glob("*.py")))
    monkeypatch.setattr(demo, "package_files", lambda: [(path.name, path) for path in sorted(packages.glob("*.py"))])
    return packages


def test_the_vocabulary_is_that_of_most_library_files(installation):
    assert demo.most_common_tokens(demo.library_files(), 3) == ["import", "sys", "def"]
    assert demo.most_common_tokens(demo.library_files(), 99) == ["import", "sys", "def", "os", "pass", "path"]


def test_prepare(installation, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'other.sqlite'}")
    said = []
    private, public = demo.prepare(tmp_path / "demo", said.append)
    assert private.n_clients + public.n_clients == 300 and 30 <= public.n_clients <= 90
    ids = [{str(name) for i in range(len(p.blocks)) for name in p.client_ids(i)} for p in (private, public)]
    assert not ids[0] & ids[1]
    assert list(private.vocabulary()) == list(public.vocabulary()) == ["import", "sys", "def", "os", "pass", "path"]

    assert private.manifest.nominal_clients == demo.NOMINAL_CLIENTS and not private.manifest.public_for_evaluation
    assert not private.has_heldout and public.has_heldout and public.manifest.public_for_evaluation
    assert public.manifest.ledger is None

    monkeypatch.delenv("FEDCORE_LEDGER")
    balance = ledger_of(private).balance(private.id)
    assert (balance.budget.epsilon, balance.budget.delta) == (demo.EPSILON, demo.DELTA) and balance.rho_spent == 0
    assert open_ledger(f"sqlite:///{(tmp_path / 'demo' / 'ledger.sqlite').resolve()}").id == private.manifest.ledger.id
    assert not (tmp_path / "other.sqlite").exists()
    assert any(str(private.n_clients) in line and str(public.n_clients) in line for line in said)


def test_halves_by_hand(installation, tmp_path):
    """Of two lines, the first is known and the second held out; words outside the vocabulary do not count."""
    _, public = demo.prepare(tmp_path / "demo", lambda _: None)
    block = public.read(0, heldout=True)
    halves = zip(public.client_ids(0), block.csr.toarray(), block.heldout.csr.toarray(), strict=True)
    for name, known, heldout in halves:
        number = int(str(name)[1:4])
        assert known.tolist() == [1, 0, 0, 0, 0, 0]
        assert heldout.tolist() == [0, number % 3, 3, 0, 0, 0]


def test_private_clients_are_whole_files(installation, tmp_path):
    private, _ = demo.prepare(tmp_path / "demo", lambda _: None)
    block = private.read(0)
    first = int(str(private.client_ids(0)[0])[1:4])
    assert block.csr.toarray()[0].tolist() == [1, first % 3, 3, 0, 0, 0]


def test_the_split_is_by_name_alone():
    names = [(f"package/file{i}.py", None) for i in range(2000)]
    private, public = demo.split(names)
    assert demo.split(reversed(names))[1] == public[::-1] and len(private) + len(public) == 2000
    assert abs(len(public) - 400) < 5 * np.sqrt(2000 * 0.2 * 0.8)


def test_too_few_packages(installation, tmp_path):
    for path in sorted(installation.glob("*.py"))[90:]:
        path.unlink()
    with pytest.raises(IngestError, match="too few"):
        demo.prepare(tmp_path / "demo", lambda _: None)
    assert not (tmp_path / "demo" / "population").exists() and not (tmp_path / "demo" / "ledger.sqlite").exists()


def test_files_that_go_or_are_no_text_are_read_as_well_as_can_be(tmp_path):
    assert demo.read(tmp_path / "gone.py") == ""
    (tmp_path / "odd.py").write_bytes(b"import \xff\xfesys")
    assert demo.TOKEN.findall(demo.read(tmp_path / "odd.py")) == ["import", "sys"]


@pytest.mark.slow
def test_the_real_files_exclude_tests_of_the_library_and_this_package():
    library, packages = demo.library_files(), demo.package_files()
    assert any(path.name == "os.py" for path in library)
    assert not any("site-packages" in path.parts or "test" in path.parts for path in library)
    assert len(packages) > 100 and not any(name.startswith(("fedcore/", "flows/", "tasks/")) for name, _ in packages)
    assert not {path for _, path in packages} & set(library)


@pytest.mark.slow
def test_the_demo_on_a_small_installation(installation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = works("demo", "--local", "--dir", "here")
    assert "differential privacy per client" in outcome.out and "here/runs/demo/report.html" in outcome.out
    again = fedcore("demo", "--local", "--dir", "here")
    assert again.code == 2 and "ConfigError" in again.err and "--dir" in again.err


@pytest.mark.slow
def test_the_whole_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = works("demo", "--local")
    run = tmp_path / "fedcore-demo" / "runs" / "demo"
    assert (run / "report.html").stat().st_size > 10_000 and "Traceback" not in outcome.err
    shown = works("runs", "show", str(run), "--json").json
    assert shown["status"] == "finished" and shown["private"] and shown["privacy"]["epsilon"] <= demo.EPSILON
    rows = json.loads((run / "evaluation.json").read_text())["rows"]
    assert {row["method"] for row in rows} >= {"Local", "FedAvg", "Algorithm 2", "Algorithm 2 + FT"}
    assert all(np.isfinite(row["kl"]) for row in rows)
    balance = works("budget", "show", "fedcore-demo/population", "--json").json
    assert 0 < balance["epsilon_spent"] <= demo.EPSILON and balance["rho_reserved"] == 0
    assert Population.open("fedcore-demo/evaluation").has_heldout
