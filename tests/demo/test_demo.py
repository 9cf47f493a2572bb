"""The demo: its populations from a made-up installation, and the whole of it on the real one."""

import json

import numpy as np
import pytest

from fedcore.cli import demo_data as demo
from fedcore.errors import IngestError
from fedcore.population.store import Population
from fedcore.population.words import OTHER
from fedcore.privacy.ledger.ledger import open_ledger
from fedcore.training.budget import ledger_of
from tests.command import fedcore, works


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """300 files of packages, each of which has one word of its own and repeats one of all on its two lines."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for number in range(300):
        text = f"import unknown{number}\ndef def def" + " sys" * (number % 3) + "\n"
        text = text.replace(str(number), "".join("abcdefghij"[int(digit)] for digit in str(number)))
        (packages / f"m{number:03d}.py").write_text(text)
    monkeypatch.setattr(demo, "package_files", lambda: [(path.name, path) for path in sorted(packages.glob("*.py"))])
    return packages


KNOWN = ["def", "import", "sys", OTHER]


def test_prepare(installation, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_LEDGER", f"sqlite:///{tmp_path / 'other.sqlite'}")
    said = []
    private, public = demo.prepare(tmp_path / "demo", said.append)
    assert private.n_clients + public.n_clients == 300 and 30 <= public.n_clients <= 90
    ids = [{str(name) for i in range(len(p.blocks)) for name in p.client_ids(i)} for p in (private, public)]
    assert not ids[0] & ids[1]
    assert list(private.vocabulary()) == list(public.vocabulary()) == KNOWN
    assert private.id == Population.open(tmp_path / "demo" / "words").id

    assert private.manifest.nominal_clients == demo.NOMINAL_CLIENTS and not private.manifest.public_for_evaluation
    assert private.manifest.halves == "document"
    assert public.has_heldout and public.manifest.public_for_evaluation
    assert public.manifest.ledger is None

    monkeypatch.delenv("FEDCORE_LEDGER")
    balance = ledger_of(private).balance(private.id)
    assert (balance.budget.epsilon, balance.budget.delta) == (demo.EPSILON, demo.DELTA)
    assert balance.rho_spent == pytest.approx(0.3 * balance.budget.rho_max)
    assert open_ledger(f"sqlite:///{(tmp_path / 'demo' / 'ledger.sqlite').resolve()}").id == private.manifest.ledger.id
    assert not (tmp_path / "other.sqlite").exists()
    assert any(str(private.n_clients) in line and str(public.n_clients) in line for line in said)

    block, halves = private.read(0, heldout=True), [0, 0]  # short files, each one section: whole in either half
    for name, half, other in zip(private.client_ids(0), block.csr.toarray(), block.heldout.csr.toarray(), strict=True):
        assert (half + other).tolist() == [3, 1, int(str(name)[1:4]) % 3, 1] and not (half * other).any()
        halves[int(other.any())] += 1
    assert min(halves) > 50
    block = public.read(0, heldout=True)  # of two lines, the first is known and the second held out
    for name, known, held in zip(public.client_ids(0), block.csr.toarray(), block.heldout.csr.toarray(), strict=True):
        assert known.tolist() == [0, 1, 0, 1]  # the word of one file is with all others
        assert held.tolist() == [3, 0, int(str(name)[1:4]) % 3, 0]


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
    assert not (tmp_path / "demo" / "words").exists() and not (tmp_path / "demo" / "ledger.sqlite").exists()


def test_files_that_go_or_are_no_text_are_read_as_well_as_can_be(tmp_path):
    assert demo.read(tmp_path / "gone.py") == ""
    (tmp_path / "odd.py").write_bytes(b"import \xff\xfesys")
    assert demo.TOKEN.findall(demo.read(tmp_path / "odd.py")) == ["import", "sys"]


@pytest.mark.slow
def test_the_real_files_exclude_this_package():
    packages = demo.package_files()
    assert len(packages) > 100 and not any(name.startswith(("fedcore/", "flows/", "tasks/")) for name, _ in packages)


@pytest.mark.slow
def test_the_demo_on_a_small_installation(installation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = works("demo", "--local", "--dir", "here")
    assert "differential privacy per client" in outcome.out and "here/runs/demo/report.html" in outcome.out
    again = fedcore("demo", "--local", "--dir", "here")
    assert again.code == 2 and "ConfigError" in again.err and "--dir" in again.err


@pytest.mark.slow
def test_the_whole_demo(tmp_path, monkeypatch):
    """On 1500 to 3000 real files: more of them change nothing but the time that it takes."""
    files = demo.package_files()
    files = files[:: max(1, len(files) // 1500)]
    monkeypatch.setattr(demo, "package_files", lambda: files)
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
