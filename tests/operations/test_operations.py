"""What becomes of the runs of a deployment: the latest one, comparisons on public data, what is pruned."""

import json
import multiprocessing

import pytest

from fedcore.errors import ConfigError, PopulationError, PrivacyError, RunError, WrongKind
from fedcore.methods.gradient_em import GradientEM
from fedcore.methods.registry import make_method
from fedcore.operations import retention
from fedcore.operations import series as operations
from fedcore.operations.latest_runs import all_latest, latest, pointer, promote
from fedcore.operations.population_page import MOST_RUNS, population_page
from fedcore.operations.retention import prune
from fedcore.operations.series import Score, conclude, decide, headline, score
from fedcore.rounds.engine import InProcessBackend
from fedcore.rounds.method import Method
from fedcore.runs.store import Run, load_run
from fedcore.training.personalise import personalise, trained
from fedcore.training.request import Series
from fedcore.training.session import concluding, resume
from tests import sessions
from tests.command import fedcore, private_population, works
from tests.conftest import edit_record, small_counts, write_counts
from tests.sessions import to_end

OPEN = {"algorithm": "algorithm2", "clusters": 2, "rounds": 2}
PRIVATE = {"epsilon": 1.0, "clusters": 2, "rounds": 2}
PUBLIC = {"public_for_evaluation": "made up"}
KEPT = ("run.json", "head.json", "metrics.jsonl", "statement.json")


def begin(population, tmp_path, run_id, settings=OPEN, deployment="nightly", stamp=None, **more):
    named = {"run_id": run_id, "deployment": deployment, "stamp": stamp or run_id, **more}
    return sessions.begin(population, tmp_path, settings=settings, **named)


def train(*arguments, **named) -> Run:
    return to_end(begin(*arguments, **named))


@pytest.fixture
def population(tmp_path):
    return write_counts(tmp_path / "p", small_counts(40))


@pytest.fixture
def public(tmp_path):
    return write_counts(tmp_path / "public", small_counts(40, seed=2), heldout=small_counts(40, seed=3), **PUBLIC)


def models(tmp_path) -> set[str]:
    return {path.parent.name for path in tmp_path.glob("runs/*/state")}


# --- the latest run -------------------------------------------------------------------------------------------------


def test_the_file_stands_for_the_run(population, tmp_path):
    first, second = train(population, tmp_path, "a"), train(population, tmp_path, "b", settings={**OPEN, "rounds": 1})
    assert latest(tmp_path / "runs", "nightly") is None and all_latest(tmp_path / "runs") == []
    made = promote(first, "nightly", "it is good", "then")
    assert made.path == pointer(tmp_path / "runs", "nightly") and made.path.name == "latest-nightly.json"
    assert (made.run, made.deployment, made.since, made.because) == ("a", "nightly", "then", "it is good")
    assert load_run(made.path).info == first.info and Run.open(str(made.path)).path == first.path
    promote(second, "nightly", "better", "later")
    promote(first, "other-one", "why not", "later")
    assert load_run(made.path).info["run_id"] == "b"
    assert [(item.deployment, item.run) for item in all_latest(tmp_path / "runs")] == [
        ("nightly", "b"),
        ("other-one", "a"),
    ]
    assert personalise(made.path, population.path, tmp_path / "out")["clients"] == 40
    assert not list(tmp_path.glob("runs/.*.partial"))


def test_only_a_finished_run_with_its_model_is_promoted(population, tmp_path):
    session = begin(population, tmp_path, "open")
    session.close()
    with pytest.raises(RunError, match="it is running"):
        promote(session.run, "nightly", "", "then")
    for name in ("a", "b"):
        run = train(population, tmp_path, name)
    prune(tmp_path / "runs", 1, "now")
    with pytest.raises(RunError, match="its model was removed"):
        promote(Run.open(tmp_path / "runs" / "a"), "nightly", "", "then")
    with pytest.raises(ConfigError, match="name of a deployment"):
        promote(run, "../up", "", "then")
    assert all_latest(tmp_path / "runs") == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 3}', '{"run": "../elsewhere"}', '{"run": ".."}', "\xff"])
def test_a_damaged_file_is_told_and_leads_nowhere(population, tmp_path, text):
    train(population, tmp_path, "a"), train(population, tmp_path, "b")
    pointer(tmp_path / "runs", "nightly").write_text(text)
    for look in (
        lambda: load_run(pointer(tmp_path / "runs", "nightly")),
        lambda: latest(tmp_path / "runs", "nightly"),
        lambda: all_latest(tmp_path / "runs"),
        lambda: prune(tmp_path / "runs", 1, "now"),
    ):
        with pytest.raises(RunError):
            look()
    assert models(tmp_path) == {"a", "b"}, "nothing is pruned while it is not known what is in use"


def test_a_file_whose_run_is_gone(population, tmp_path):
    run = train(population, tmp_path, "a")
    pointer(run.path.parent, "nightly").write_text('{"run": "gone"}')
    with pytest.raises(RunError, match="no run at"):
        load_run(pointer(run.path.parent, "nightly"))
    told = conclude(run, "nightly", Series(), None, "then")
    assert told["promoted"] and told["latest_before"] is None and latest(run.path.parent, "nightly").run == "a"


# --- comparison -----------------------------------------------------------------------------------------------------


def score_of(value: float, run="r", loss="kl") -> Score:
    return Score(run, loss, "FedAvg + FT", value, 0.1)


@pytest.mark.parametrize(
    "given, mine, theirs, why_not, promoted, words",
    [
        ({}, None, None, "", True, "always"),
        ({"promote": "never"}, None, None, "", False, "never"),
        ({"promote": "never", "evaluate_on": "p"}, 1.0, 2.0, "", False, "never"),
        ({"promote": "always", "evaluate_on": "p"}, 2.0, 1.0, "", True, "always"),
        ({"promote": "if_better", "evaluate_on": "p"}, 1.0, None, "", True, "first"),
        ({"promote": "if_better", "evaluate_on": "p"}, 1.0, None, "it is torn", False, "it is torn"),
        ({"promote": "if_better", "evaluate_on": "p"}, 1.0, 2.0, "", True, "kl 1 against 2"),
        ({"promote": "if_better", "evaluate_on": "p"}, 2.0, 2.0, "", True, "+0"),
        ({"promote": "if_better", "evaluate_on": "p"}, 2.0625, 2.0, "", False, "+0.0625, tolerance 0"),
        ({"promote": "if_better", "evaluate_on": "p", "tolerance": 0.0625}, 2.0625, 2.0, "", True, "tolerance 0.0625"),
        ({"promote": "if_better", "evaluate_on": "p", "tolerance": 0.05}, 2.0625, 2.0, "", False, "tolerance 0.05"),
    ],
)
def test_who_becomes_the_latest(given, mine, theirs, why_not, promoted, words):
    mine, theirs = (None if value is None else score_of(value) for value in (mine, theirs))
    decision = decide(Series(**given), mine, theirs, why_not)
    assert decision.promoted is promoted and words in decision.because


def test_scores_of_different_kinds_are_not_compared():
    decision = decide(Series(promote="if_better", evaluate_on="p"), score_of(1.0), score_of(2.0, loss="nll"))
    assert not decision.promoted and "nll" in decision.because


@pytest.mark.parametrize(
    "config, expected",
    [
        ({}, ("Local mixture + FT", "")),
        ({"personalisation": "centre"}, ("Algorithm 2 + FT", "")),
        ({"weights": "local"}, ("Local mixture + FT", "each client")),
        ({"algorithm": "fedavg"}, ("FedAvg + FT", "")),
    ],
)
def test_the_score_is_that_of_what_clients_are_given(population, public, tmp_path, config, expected):
    run = train(population, tmp_path, "a", settings=config if "algorithm" in config else {**OPEN, **config})
    table = operations.evaluate_run(run.path, public)
    found = headline(run, trained(run)[0], table)
    (row,) = [row for row in table["rows"] if (row["method"], row["chosen_by"]) == expected]
    assert (found.score, found.standard_error, found.estimate) == (row["kl"], row["se"], expected[0])


def test_the_score_of_a_run_that_has_a_line_of_its_own(population, tmp_path):
    run = train(population, tmp_path, "a")
    method = GradientEM()
    rows = [{"method": "normal columns", "nll": 3.0, "se": 0.1}, {"method": "this run", "nll": 2.0, "se": 0.2}]
    assert headline(run, method, {"loss": "nll", "rows": rows}) == Score("a", "nll", "this run", 2.0, 0.2)


@pytest.mark.slow
def test_a_better_run_becomes_the_latest_and_a_worse_one_does_not(population, public, tmp_path):
    series = Series(promote="if_better", evaluate_on=str(public.path))
    one = train(population, tmp_path, "a", settings={"algorithm": "fedavg"})
    told = conclude(one, "nightly", series, public, "1")
    assert told["promoted"] and told["because"] == "it is the first one" and len(told["rows"]) == 1
    other = train(population, tmp_path, "b", settings={**OPEN, "clusters": 4})
    better = score(other, public).score < score(one, public).score
    assert score(other, public).score != score(one, public).score
    told = conclude(other, "nightly", series, public, "2")
    assert told["promoted"] is better and latest(tmp_path / "runs", "nightly").run == ("b" if better else "a")
    assert [row["run"] for row in told["rows"]] == ["b", "a"] and told["latest_before"] == "a"
    # The loser's settings again: the outcome is the opposite one, unless a tolerance allows it.
    again = train(population, tmp_path, "c", settings={"algorithm": "fedavg"} if better else {**OPEN, "clusters": 4})
    told = conclude(again, "nightly", series, public, "3")
    assert not told["promoted"] and told["public"] == "made up" and told["version"] == 1
    assert json.loads((again.path / "comparison.json").read_text()) == {k: v for k, v in told.items() if k != "pruned"}
    assert json.loads((again.path / "evaluation.json").read_text())["population"] == "public"
    lenient = series.model_copy(update={"tolerance": 100.0})
    assert conclude(again, "nightly", lenient, public, "4")["promoted"]
    assert latest(tmp_path / "runs", "nightly").run == "c"


def test_a_latest_run_that_cannot_be_scored_stays(population, public, tmp_path):
    series = Series(promote="if_better", evaluate_on=str(public.path))
    conclude(train(population, tmp_path, "a"), "nightly", series, public, "1")
    for file in (tmp_path / "runs" / "a" / "state").iterdir():
        file.write_bytes(b"")
    told = conclude(train(population, tmp_path, "b"), "nightly", series, public, "2")
    assert not told["promoted"] and "could not be compared" in told["because"]
    assert latest(tmp_path / "runs", "nightly").run == "a"


def test_a_private_run_is_compared_on_public_data_only(public, tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(100), heldout=small_counts(100, seed=4))
    run = train(population, tmp_path, "a", settings=PRIVATE)
    method = make_method("histograms", PRIVATE)
    with pytest.raises(PrivacyError, match="not declared public"):
        operations.public_population(Series(evaluate_on=str(population.path)), method, population)
    with pytest.raises(PrivacyError, match="not declared public"):
        conclude(run, "nightly", Series(evaluate_on=str(population.path)), population, "1")
    assert latest(run.path.parent, "nightly") is None and not (run.path / "evaluation.json").exists()
    store = operations.public_population(Series(evaluate_on=str(public.path)), method, population)
    assert conclude(run, "nightly", Series(evaluate_on=str(public.path)), store, "1")["promoted"]


def test_what_is_compared_is_checked_before_training(population, tmp_path):
    method = make_method("paper_histograms", OPEN)

    def ask(path, method=method, population=population):
        return operations.public_population(Series(evaluate_on=str(path)), method, population)

    assert operations.public_population(Series(), method, population) is None
    write_counts(tmp_path / "nothing", small_counts(40), **PUBLIC)
    with pytest.raises(PopulationError, match="no held-out part"):
        ask(tmp_path / "nothing")
    write_counts(tmp_path / "wide", small_counts(40, 9), heldout=small_counts(40, 9), **PUBLIC)
    with pytest.raises(WrongKind, match="9 features"):
        ask(tmp_path / "wide")
    with pytest.raises(PopulationError, match="no population"):
        ask(tmp_path / "missing")
    with pytest.raises(ConfigError, match="cannot be scored"):
        ask(
            write_counts(tmp_path / "good", small_counts(40), heldout=small_counts(40), **PUBLIC).path,
            method=unscored(method),
        )
    words = [f"w{i}" for i in range(7)]
    mine = write_counts(tmp_path / "mine", small_counts(40), vocabulary=words)
    write_counts(tmp_path / "theirs", small_counts(40), heldout=small_counts(40), vocabulary=words[::-1], **PUBLIC)
    with pytest.raises(ConfigError, match="another vocabulary"):
        ask(tmp_path / "theirs", population=mine)


def unscored(method):
    class Unscored(type(method)):
        score_block = Method.score_block

    return Unscored(method.config)


def test_a_run_that_was_not_scored_never_replaces_one_that_was():
    theirs = Score("old", "nll", "this run", 2.0, 0.1)
    assert not decide(Series(promote="if_better", evaluate_on="public"), None, theirs).promoted


# --- retention ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_old_models_go_and_what_they_cost_stays(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(100), epsilon=60.0)
    runs = [train(population, tmp_path, name, settings=PRIVATE, start_from="previous") for name in "abcd"]
    before = {run.id: {name: (run.path / name).read_bytes() for name in KEPT if name != "head.json"} for run in runs}
    promote(runs[0], "nightly", "", "then")
    assert [item["run"] for item in prune(tmp_path / "runs", 2, "now", dry_run=True)] == ["b"]
    assert models(tmp_path) == set("abcd")
    (gone,) = prune(tmp_path / "runs", 2, "now")
    assert gone["run"] == "b" and gone["bytes"] > 0 and gone["removed"] and gone["deployment"] == "nightly"
    assert models(tmp_path) == set("acd") and not (runs[1].path / "releases").exists()
    assert not (runs[1].path / "start.zip").exists()
    for name, content in before["b"].items():
        assert (runs[1].path / name).read_bytes() == content
    with pytest.raises(RunError, match="was removed on now.*report are still there"):
        load_run(runs[1].path)
    assert Run.open(runs[1].path).pruned and Run.open(runs[1].path).metrics()
    assert prune(tmp_path / "runs", 2, "later") == []
    assert train(population, tmp_path, "e", settings=PRIVATE, start_from="previous").info["start"]["name"] == "d"


def test_runs_that_have_not_finished_or_are_held_are_left_alone(population, tmp_path):
    session = begin(population, tmp_path, "a")
    session.training.step()
    session.close()
    failed = begin(population, tmp_path, "b")
    with pytest.raises(ConfigError), concluding(failed):
        raise ConfigError("it went wrong")
    for name in "cde":
        train(population, tmp_path, name)
    with_lock = Run.open_locked(tmp_path / "runs" / "c")
    told = {item["run"]: item["removed"] for item in prune(tmp_path / "runs", 1, "now")}
    assert told == {"c": False, "d": True} and models(tmp_path) == set("abce")
    with_lock.unlock()
    assert [item["removed"] for item in prune(tmp_path / "runs", 1, "now")] == [True]
    assert models(tmp_path) == set("abe")
    with concluding(again := resume(tmp_path / "runs" / "a", InProcessBackend())):
        while again.training.step() is not None:
            pass
    assert again.run.status == "finished"


def test_a_removal_that_was_interrupted_is_finished_by_the_next(population, tmp_path, monkeypatch):
    for name in "ab":
        train(population, tmp_path, name)

    def dies(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(retention.files, "remove", dies)
        with pytest.raises(KeyboardInterrupt):
            prune(tmp_path / "runs", 1, "now")
    with pytest.raises(RunError, match="was removed"):  # not: unreadable
        load_run(tmp_path / "runs" / "a")
    assert [item["run"] for item in prune(tmp_path / "runs", 1, "later")] == ["a"]
    assert models(tmp_path) == {"b"} and Run.open(tmp_path / "runs" / "a").head["pruned"] == "now"


def test_each_series_is_counted_by_itself(population, tmp_path):
    other = write_counts(tmp_path / "q", small_counts(40, seed=5))
    for name in "ab":
        train(population, tmp_path, name)
        train(population, tmp_path, f"{name}-weekly", deployment="weekly")
        train(population, tmp_path, f"{name}-by-hand", deployment=None)
        train(other, tmp_path, f"{name}-other", deployment=None)
    assert [item["run"] for item in prune(tmp_path / "runs", 1, "now", "weekly", dry_run=True)] == ["a-weekly"]
    gone = {item["run"] for item in prune(tmp_path / "runs", 1, "now")}
    assert gone == {"a", "a-weekly", "a-by-hand", "a-other"}
    assert prune(tmp_path / "nowhere", 1, "now") == []
    with pytest.raises(ConfigError, match="at least one"):
        prune(tmp_path / "runs", 0, "now")


def test_newest_is_by_time_and_not_by_name(population, tmp_path):
    for name, stamp in (("z", "1"), ("a", "3"), ("m", "2")):
        train(population, tmp_path, name, stamp=stamp)
    assert [item["run"] for item in prune(tmp_path / "runs", 1, "now")] == ["z", "m"]


def test_a_series_keeps_what_its_deployment_says(population, tmp_path):
    series = Series(retention=2, promote="never")
    told = [conclude(train(population, tmp_path, name), "nightly", series, None, name) for name in "abcd"]
    assert [item["pruned"] for item in told] == [[], [], ["a"], ["b"]] and models(tmp_path) == set("cd")
    assert all_latest(tmp_path / "runs") == []


def _promote_often(path, name, times):
    for number in range(times):
        promote(Run.open(path), name, str(number), "then")


@pytest.mark.slow
def test_readers_always_see_a_whole_file(population, tmp_path):
    """While another process promotes one run after the other."""
    run = train(population, tmp_path, "a")
    promote(run, "nightly", "", "then")
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=_promote_often, args=(run.path, "nightly", 40))
    writer.start()
    seen = set()
    while writer.is_alive():
        seen.add(latest(run.path.parent, "nightly").because)
    writer.join()
    assert writer.exitcode == 0 and len(seen) > 1


# --- runs that were interrupted ---------------------------------------------------------------------------------------


def interrupted(population, tmp_path, run_id, series, **more) -> Run:
    session = begin(population, tmp_path, run_id, series=series, **more)
    session.training.step()
    session.close()
    return session.run


@pytest.mark.slow
def test_a_resumed_run_ends_like_an_undisturbed_one(population, public, tmp_path):
    """Compared, promoted, and older ones pruned: the run knows its deployment and what was asked of it."""
    series, told = Series(promote="if_better", evaluate_on=str(public.path), tolerance=9.0, retention=1), []
    for run_id in "abc":
        if run_id == "c":
            run = interrupted(population, tmp_path, run_id, series)
            assert works("resume", run.path, "--local", "--json").json["status"] == "finished"
        else:
            run = train(population, tmp_path, run_id, series=series)
            conclude(run, "nightly", series, public, run_id)
        assert latest(tmp_path / "runs", "nightly").run == run_id
        told.append(json.loads((run.path / "comparison.json").read_text()))
    names = {"b": "c", "a": "b"}
    for row in told[1]["rows"]:
        row["run"] = names[row["run"]]
    expected = {**told[1], "run": "c", "latest_before": "b", "because": told[1]["because"].replace("run a", "run b")}
    assert told[2] == expected and "nll" not in told[2]["because"]
    assert models(tmp_path) == {"c"}


def test_a_run_that_cannot_be_compared_any_more_is_finished_all_the_same(population, public, tmp_path):
    for run_id, promote_it in (("a", "if_better"), ("b", "always")):
        run = interrupted(population, tmp_path, run_id, Series(promote=promote_it, evaluate_on=str(tmp_path / "gone")))
        assert works("resume", run.path, "--local", "--json").json["status"] == "finished"
        told = json.loads((run.path / "comparison.json").read_text())
        assert told["promoted"] is (promote_it == "always") and told["rows"] == []
        assert run_id == "b" or "could not be compared" in told["because"] and "gone" in told["because"]


def test_runs_that_no_deployment_asked_for_are_not_concluded(population, tmp_path):
    run = interrupted(population, tmp_path, "a", None, deployment=None)
    assert works("resume", run.path, "--local", "--json").json["status"] == "finished"
    assert not (run.path / "comparison.json").exists() and all_latest(tmp_path / "runs") == []
    edit_record(run.path, lambda asked: asked.update(deployment="nightly", series={"promote": "often"}))
    with pytest.raises(RunError, match="series in run.json"):
        operations.conclusion_of(Run.open(run.path), make_method("paper_histograms", OPEN), population)


# --- the command line -----------------------------------------------------------------------------------------------


def test_latest_promote_and_prune_on_the_command_line(population, tmp_path):
    folder = tmp_path / "runs"
    for name in "abc":
        train(population, tmp_path, name)
    train(population, tmp_path, "by-hand", deployment=None)
    assert "no latest runs" in works("runs", "latest", "--runs", folder).out
    refused = fedcore("runs", "latest", "--deployment", "nightly", "--runs", folder, "--json")
    assert refused.code == 2 and refused.json["error"] == "RunNotFound"
    made = works("runs", "promote", folder / "a", "--because", "it serves us well", "--json").json
    assert made["deployment"] == "nightly" and made["file"] == str(folder / "latest-nightly.json")
    (told,) = works("runs", "latest", "--runs", folder, "--json").json["latest"]
    assert told["run"] == str(folder / "a") and told["because"] == "it serves us well"
    assert "it serves us well" in works("runs", "latest", "--deployment", "nightly", "--runs", folder).out
    assert fedcore("runs", "promote", folder / "by-hand").code == 2
    assert "weekly" in works("runs", "promote", folder / "by-hand", "--deployment", "weekly", "--json").json["file"]
    assert works("runs", "show", folder / "latest-nightly.json", "--json").json["run_id"] == "a"
    prunes = ["runs", "prune", "--keep", "1", "--runs", folder, "--json"]
    told = works(*prunes, "--dry-run").json
    assert told["dry_run"] and [item["run"] for item in told["pruned"]] == ["b"] and models(tmp_path) >= set("abc")
    assert "Would be removed" in works(*prunes[:-1], "--dry-run").out
    assert [item["removed"] for item in works(*prunes, "--deployment", "nightly").json["pruned"]] == [True]
    assert "nothing to remove" in works(*prunes[:-1]).out
    listed = {row["run"]: row["model"] for row in works("runs", "list", "--runs", folder, "--json").json["runs"]}
    assert listed[str(folder / "b")] == "removed" and listed[str(folder / "a")] == "kept"
    assert fedcore("runs", "prune", "--keep", "0", "--runs", folder).code == 2
    refused = fedcore("predict", folder / "b", population.path, tmp_path / "out", "--json")
    assert refused.code == 2 and "was removed" in refused.json["message"]


# --- the page of a population ---------------------------------------------------------------------------------------


def test_the_page_of_a_private_population(tmp_path):
    population, ledger = private_population(tmp_path / "a_b", small_counts(100), epsilon=8.0)
    run = train(population, tmp_path, "first", settings=PRIVATE)
    promote(run, "nightly", 'promote = "always" | <b>', "then")
    session = begin(population, tmp_path, "second", settings=PRIVATE)
    session.close()
    other = write_counts(tmp_path / "q", small_counts(40))
    train(other, tmp_path, "elsewhere")
    page = population_page(str(population.path), tmp_path / "runs")
    statement = json.loads((run.path / "statement.json").read_text())
    assert page.startswith("# Population a\\_b\n") and "elsewhere" not in page
    assert "| 1 | 100 |" in page and "do not publish" in page
    assert f"| first | finished | {statement['epsilon']:.5g} |" in page
    assert "| second | interrupted | not stated yet |" in page
    assert page.index("| second | interrupted") < page.index("| first | finished"), "newest first"
    balance = ledger.balance(population.id)
    assert f"| spent | {balance.rho_spent:.5g} | {balance.epsilon_spent:.5g} |" in page
    assert f"| left | {balance.rho_left:.5g} |" in page and balance.rho_reserved > 0
    fits = float(page.split("A run of epsilon ")[1].split()[0])
    assert balance.budget.rho_of(fits) <= balance.rho_left < balance.budget.rho_of(1.01 * fits)
    assert "\\| &lt;b&gt;" in page and "| nightly | first |" in page


def test_the_page_of_a_population_without_ledger_or_budget(population, tmp_path):
    assert "names no ledger" in population_page(str(population.path), tmp_path / "runs")
    bare, _ = private_population(tmp_path / "bare", small_counts(40), epsilon=None)
    assert "No budget is set" in population_page(str(bare.path), tmp_path / "runs")
    train(population, tmp_path, "open")
    pointer(tmp_path / "runs", "nightly").write_text("{")
    page = population_page(str(population.path), tmp_path / "runs")
    assert "| open | finished | not private |" in page and "unreadable" in page


def test_a_lost_ledger_is_said(tmp_path):
    population, _ = private_population(tmp_path / "p", small_counts(40))
    (tmp_path / "ledger.sqlite").unlink()
    assert "The ledger is not at hand" in population_page(str(population.path), tmp_path / "runs")


def test_the_page_does_not_grow_for_ever(population, tmp_path, monkeypatch):
    runs = [replaced(run_id) for run_id in range(MOST_RUNS + 3)]
    monkeypatch.setattr(
        "fedcore.operations.population_page.list_runs", lambda folder: [run(tmp_path, population) for run in runs]
    )
    page = population_page(str(population.path), tmp_path / "runs")
    assert (
        page.count(" | finished | not private | 0") == MOST_RUNS
        and "and 3 older runs" in page
        and f"run{MOST_RUNS + 2:03}" in page
    )


def replaced(number):
    def make(tmp_path, population):
        info = {
            "run_id": f"run{number:03}",
            "method": "histograms",
            "population": {"id": population.id},
            "started": f"{number:03}",
            "private": False,
        }
        return Run(tmp_path / info["run_id"], info, {"round": 1, "status": "finished", "metrics_bytes": 0})

    return make


def test_versions_are_listed_newest_first(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"client,a,b\nc{number},1,2\n")
        more = ("--append",) if number else ("--format", "csv", "--client", "client")
        works("population", "ingest", tmp_path / f"{number}.csv", tmp_path / "p", *more)
    page = population_page(str(tmp_path / "p"), tmp_path / "runs")
    rows = [line for line in page.splitlines() if line.endswith("| no |")]
    assert rows == ["| 3 | 3 | 3 | 1 | no |", "| 2 | 2 | 2 | 1 | no |", "| 1 | 1 | 1 | 1 | no |"]
