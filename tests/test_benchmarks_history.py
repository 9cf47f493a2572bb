"""Histories of benchmarks: what a line holds, and what may be said of two commits."""

import json
import subprocess

import pytest

from benchmarks import growth, history
from benchmarks.__main__ import main
from benchmarks.measured import Measured

OLD, NEW = "a" * 40, "b" * 40
MACHINE = {"cores": 2, "numpy": "2.0"}


def line(commit, median, q1, q3, n=3, *, changed=False, machine=MACHINE, load=(0.1, 0.2), what="core", **more):
    quantity = {"median": median, "q1": q1, "q3": q3, "n": n}
    return {
        "schema": 1,
        "benchmark": "em",
        "arguments": {"clients": 10},
        "commit": commit,
        "changed": changed,
        "machine": machine,
        "load": list(load),
        "labels": {"what": what},
        "quantities": {"seconds": quantity},
        **more,
    }


def only(rows):
    (row,) = rows
    return row


def test_a_line_for_each_row_with_quantities(tmp_path):
    result = {
        "benchmark": "em",
        "rows": [
            {"what": "core", "clients": 10, "seconds": Measured([1.0, 2.0, 4.0]), "ratio": 0.5},
            {"what": "peer", "skipped": "not installed"},
        ],
    }
    file = tmp_path / "history.jsonl"
    for _ in range(2):
        history.append(file, history.lines(result, {"clients": 10, "dir": tmp_path}, 0.25))
    one, other = history.read(file)
    assert one["labels"] == other["labels"] == {"what": "core", "clients": 10}
    assert one["quantities"] == {
        "seconds": {"median": 2.0, "q1": 1.5, "q3": 3.0, "n": 3},
        "ratio": {"median": 0.5, "q1": 0.5, "q3": 0.5, "n": 1},
    }
    assert one["arguments"] == {"clients": 10} and one["load"][0] == 0.25
    assert {"cores", "memory_bytes", "python", "numpy", "blas", "processor", "system"} == one["machine"].keys()
    assert one["peak_bytes"].keys() == {"benchmark"} and one["peak_bytes"]["benchmark"] > 2**20
    assert {"commit", "changed", "version", "date"} <= one.keys()


def test_the_commit_is_that_of_the_clone(tmp_path):
    def git(*words):
        return subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    assert history.commit(tmp_path) == {"commit": None, "changed": False}
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    assert history.commit(tmp_path) == {"commit": git("rev-parse", "HEAD"), "changed": False}
    (tmp_path / "file").write_text("2")
    assert history.commit(tmp_path)["changed"]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}', '{"schema": 1, "benchmark": "em"}'])
def test_a_damaged_line_is_named(tmp_path, text):
    file = tmp_path / "history.jsonl"
    file.write_text(json.dumps(line(OLD, 1.0, 1.0, 1.0)) + "\n" + text + "\n")
    with pytest.raises(ValueError, match="line 2 of"):
        history.read(file)


def test_a_difference_outside_the_noise():
    row = only(history.compare([line(OLD, 2.0, 1.8, 2.2), line(NEW, 1.0, 0.9, 1.1)])[0])
    assert (row["ratio"], row["says"]) == (0.5, "less")
    assert row["from"] == pytest.approx(0.9 / 2.2) and row["to"] == pytest.approx(1.1 / 1.8)
    row = only(history.compare([line(OLD, 1.0, 0.9, 1.1), line(NEW, 2.0, 1.8, 2.2)])[0])
    assert row["says"] == "more"


def test_a_difference_inside_the_noise():
    row = only(history.compare([line(OLD, 2.0, 1.0, 2.2), line(NEW, 1.0, 0.9, 1.1)])[0])
    assert row["says"] == "inside the noise" and row["from"] <= 1 <= row["to"]


def test_one_measurement_tells_no_spread():
    row = only(history.compare([line(OLD, 2.0, 2.0, 2.0, 1), line(NEW, 1.0, 1.0, 1.0, 1)])[0])
    assert row["ratio"] == 0.5 and row["says"] == "unknown: too few values"
    # three runs of one value each do: they differ from run to run
    row = only(
        history.compare(
            [line(OLD, value, value, value, 1) for value in (2.0, 1.0, 3.0)]
            + [line(NEW, value, value, value, 1) for value in (1.5, 1.4, 1.3)]
        )[0]
    )
    assert row["earlier"] == 2.0 and row["says"] == "inside the noise"


def test_nothing_is_divided_by_nothing():
    row = only(history.compare([line(OLD, 0.0, 0.0, 0.0), line(NEW, 1.0, 1.0, 1.0)])[0])
    assert row["ratio"] is None and row["says"].startswith("no ratio")


def test_only_the_same_is_compared():
    rows, remarks = history.compare(
        [
            line(OLD, 1.0, 0.9, 1.1),
            line(OLD, 1.0, 0.9, 1.1, what="floor"),
            line(NEW, 1.0, 0.9, 1.1, arguments={"clients": 20}),
            line(NEW, 5.0, 4.9, 5.1, what="floor"),
        ]
    )
    assert only(rows)["what"] == "floor"
    assert any(remark.startswith("2 quantities") for remark in remarks)


def test_commits_by_their_beginnings():
    lines = [line(OLD, 1.0, 1, 1), line(NEW, 2.0, 2, 2), line(NEW, 4.0, 4, 4, changed=True)]
    assert only(history.compare(lines)[0])["ratio"] == 2.0  # the last two: the commit, and what was changed after it
    assert only(history.compare(lines, ("a", "b"))[0])["ratio"] == 2.0
    assert only(history.compare(lines, ("a", "bbb+"))[0])["ratio"] == 4.0
    assert only(history.compare(lines, (NEW, OLD))[0])["ratio"] == 0.5
    for between in (("c", "a"), ("a+", "b")):
        with pytest.raises(ValueError, match="stands for 0 of the commits"):
            history.compare(lines, between)
    with pytest.raises(ValueError, match="1 commit"):
        history.compare(lines[:1])


def test_other_machines_and_busy_ones_are_remarked():
    _, remarks = history.compare([line(OLD, 1.0, 1, 1), line(NEW, 1.0, 1, 1)])
    assert len(remarks) == 1
    _, remarks = history.compare(
        [line(OLD, 1.0, 1, 1, load=(0.5, 2.5)), line(NEW, 1.0, 1, 1, machine={**MACHINE, "numpy": "3.0"})]
    )
    assert "machines" in remarks[1] and remarks[2].startswith("1 lines")


def test_compare_from_the_command_line(tmp_path, capsys, monkeypatch):
    file = tmp_path / "history.jsonl"
    history.append(file, [line(OLD, 2.0, 1.8, 2.2), line(NEW, 1.0, 0.9, 1.1)])
    monkeypatch.setattr("sys.argv", ["benchmarks", "compare", str(file)])
    main()
    out = capsys.readouterr().out
    assert "less" in out and f"{OLD[:10]} -> {NEW[:10]}" in out
    monkeypatch.setattr("sys.argv", ["benchmarks", "compare", str(file), "--between", "a", "x"])
    with pytest.raises(SystemExit, match="'x' stands for 0"):
        main()


def test_growth_is_told_beside_100000_clients():
    """The last line of a cell counts; what was not measured is left empty."""

    def of_size(clients, spent):
        row = line(NEW, 0.0, 0.0, 0.0)
        labels = {"what": "em", "workers": 2, "blocks": "store", "clients": clients}
        quantities = {name: {"median": value} for name, value in spent.items()}
        return row | {"benchmark": "scale", "labels": labels, "quantities": quantities}

    first, again = of_size(100_000, {"cpu_us_per_client": 9.0}), of_size(100_000, {"cpu_us_per_client": 2.0})
    more = [of_size(10**6, {"cpu_us_per_client": 1.9, "worker_MiB": 150.4}), of_size(10_000, {"flow_MiB": 240.0})]
    found = growth.growth([line(NEW, 1.0, 1.0, 1.0), first, *more, again])
    assert growth.table(found)[2:] == [
        "| em | 2 | store | 10,000 |  |  | 240 |  |",
        "| em | 2 | store | 100,000 | 2.00 | 1.00 |  |  |",
        "| em | 2 | store | 1,000,000 | 1.90 | 0.95 |  | 150 |",
    ]


@pytest.mark.slow
def test_growth_is_drawn(tmp_path):
    cell = {10_000: {"cpu_us_per_client": 2.0}, 100_000: {"cpu_us_per_client": 1.9, "worker_MiB": 150.0}}
    growth.draw({("em", 2, "store"): cell, ("em", 2, "cached"): {}}, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes()[1:4] == b"PNG"
