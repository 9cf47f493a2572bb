"""Each law notices a method that breaks it, and says so in a sentence; a sound method breaks none."""

import json

import pytest

from fedcore.privacy.mechanisms import TestNoise
from fedcore.rounds.method import Method
from fedcore.testing import LAWS, LawBroken, cases_for, each_setting_matters, noise_from
from fedcore.testing.__main__ import main
from fedcore.testing.privacy_laws import variance_of
from tests.conformance import broken
from tests.conformance.broken import Sound, SoundConfig

PUBLIC = [
    (broken.NotDescribed, "definition", "have no description"),
    (broken.DeclaredTwice, "definition", "declares a metric twice"),
    (broken.UnknownMain, "definition", "calls 'clusters' a main setting, and its Config has no such setting"),
    (broken.NoMain, "definition", "has more than 8 settings: name in main_settings those that are shown first"),
    (broken.TooManyMain, "definition", "has 9 main settings"),
    (broken.UnknownFree, "definition", "calls 'prior' a free setting, and its Config has no such setting"),
    (broken.NoReason, "definition", "why it is not private"),
    (broken.Endless, "rounds", "the run has no end: total_rounds says 3"),
    (broken.NoState, "rounds", "init returns a dict as state, not a ToyState"),
    (broken.NoPhase, "rounds", "phase returns 0, not a text"),
    (broken.Undeclared, "metrics", "'clients' is not declared"),
    (broken.NotFinite, "metrics", "'movement' is nan, which is not finite"),
    (broken.AnyOrder, "statistics add", "the order in which leaves are added changes bits"),
    (broken.FirstLeaf, "statistics add", "added twice.* Name block.leaf"),
    (broken.NoPair, "statistics add", "does not return two values: statistics and memory"),
    (broken.Forgetful, "statistics add", "memory 'asked' of 3 clients has shape"),
    (broken.Writing, "purity", "client_update changes its inputs: .*'asked'"),
    (broken.Chance, "purity", "client_update gives other bits when it is called again"),
    (broken.Remembering, "purity", "server_update changes the method object: .*last"),
    (broken.Moving, "purity", "server_update changes its inputs: .*centre"),
    (broken.NumpyScalars, "storable state", "step is a int64 in one case and a int in the other"),
    (broken.Lists, "storable state", "'centre' cannot be stored"),
    (broken.Beyond, "chunkings", "ends with other state"),
    (broken.Beside, "resuming", "ends with other state than the run in memory"),
    (broken.FewOutputs, "personalise", "gives 'distance' of shape"),
    (broken.NoTitle, "scores", "lacks title, loss, axis"),
    (broken.UnequalColumns, "result", "unequal lengths"),
    (broken.BadStart, "warm start", "not an array of finite float64"),
]
PRIVATE = [
    (broken.Telling, "metrics", "follows the raw data"),
    (broken.PlansAnew, "plan", "another plan when it is called again"),
    (broken.Unplanned, "plan", r"releases \['mean-1', 'more'\]"),
    (broken.Floats, "plan", "a private round uses exact integer sums"),
    (broken.OtherShape, "plan", "not an int64 array of the planned shape"),
    (broken.KnowsItsClients, "stand-ins", "cannot be asked: nobody has so many"),
    (broken.Unclipped, "sensitivity", "one client more moves release 'mean-1' by"),
    (broken.SharedOut, "sensitivity", "one client more moves release"),
    (broken.TooOften, "sensitivity", "one client more moves release"),
    (broken.FollowsTotals, "sensitivity", "are published.*, round 2: one client more moves release"),
    (broken.NoName, "sensitivity", "are published, the run ends with an error that is not fedcore's: OverflowError"),
    (broken.FailsForSome, "sensitivity", "are published.*some rows make the clients fail, and others do not: RunError"),
    (
        broken.TakesAnyStart,
        "sensitivity",
        "a start where 'centre' is too short is neither taken nor refused: ValueError",
    ),
    (broken.TrustsItsMessage, "messages", "with a message whose 'centre' is .*, one client moves release 'mean-1'"),
    (broken.SharedOut, "participants", "depends on how leaves are cut"),
    (broken.CountsLeaves, "participants", "'mean-1' of no clients is not zero"),
    (broken.CountsLeaves, "sites", "round 1 at site . of 3 differs from one place"),
]


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.slow
def test_a_sound_method_obeys(law, private):
    for case in cases_for(Sound(SoundConfig(private=private))):
        LAWS[law](case)


@pytest.mark.parametrize(
    ("cls", "law", "sentence", "private"),
    [(*each, False) for each in PUBLIC] + [(*each, True) for each in PRIVATE],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_method_is_told(cls: type[Method], law, sentence, private):
    with pytest.raises(Exception, match=f"(?s){sentence}"):
        for case in cases_for(cls(cls.Config(private=private))):
            LAWS[law](case)


@pytest.mark.parametrize("private", [False, True])
def test_a_setting_that_nothing_reads_is_noticed(private):
    each_setting_matters(cases_for(Sound(SoundConfig(private=private))))
    with pytest.raises(LawBroken, match="no value of shape that was tried changes what a run of Unread"):
        each_setting_matters(cases_for(broken.Unread(broken.Unread.Config(private=private))))


class TooQuiet(TestNoise):
    """Noise of a smaller scale than was planned."""

    share = 0.9

    def draw(self, planned, run_key, values):
        noise = super().draw(planned, run_key, values * 0)
        self.key += "."
        return values + (noise * self.share).astype(int)


def test_too_little_and_too_much_noise_are_noticed():
    case, _ = cases_for(Sound(SoundConfig(private=True)))
    for share, passes in ((0.9, False), (1.1, False), (1.0, True)):
        source = TooQuiet("a")
        source.share = share
        if passes:
            noise_from(case, source)
            continue
        with pytest.raises(LawBroken, match="times the planned variance"):
            noise_from(case, source)


@pytest.mark.parametrize(("scale", "variance"), [(0.3, 0.0956), (1.0, 1.0833), (7.0, 49.083), (100.0, 10_000.08)])
def test_the_variance_of_the_rounded_gaussian(scale, variance):
    assert variance_of(scale) == pytest.approx(variance, rel=1e-3)


# --- python -m fedcore.testing ----------------------------------------------------------------------------------------


@pytest.fixture
def without_workers(monkeypatch):
    monkeypatch.setattr("fedcore.testing.__main__.WORKERS", ())


@pytest.mark.slow
def test_the_command_says_of_every_law_whether_it_holds(capsys, without_workers):
    assert main(["tests.conformance.broken:Sound", "--set", "rounds=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [["ok", name] for name in [*LAWS, "settings", "workers"]]
    assert main(["tests.conformance.broken:Moving", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    bad = {row["law"]: row["broken"] for row in told["laws"] if not row["ok"]}
    assert told["method"] == "sound" and "changes its inputs" in bad["purity"]


def test_an_error_of_the_author_is_told_with_its_place(capsys, without_workers):
    assert main(["tests.conformance.broken:NoTitle"]) == 1
    assert main(["tests.conformance.broken:NoState"]) == 1
    out = capsys.readouterr().out
    assert "failed  rounds: " in out and "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no.such:Thing"], "cannot be loaded"),
        (["tests.conformance.broken:PlainSum"], "is not a method"),
        (["tests.conformance.broken:Sound", "--set", "rounds=0"], "greater than or equal to 1"),
        (["tests.conformance.broken:Sound", "--set", "unknown=1"], "'unknown' is not a setting"),
        (["private_gmm"], "radius"),
    ],
)
def test_what_cannot_be_looked_at_is_an_error_of_the_user(capsys, arguments, text):
    assert main(arguments) == 2
    assert text in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] in ("MethodError", "ConfigError")
