"""No command tells more of private clients than it is paid for: each is run in neighbouring worlds, with the same
published values, and everything that leaves the process must be equal, but for what the table of commands declares.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.audit import flows, sabotage
from tests.audit.commands import COMMANDS, rows
from tests.audit.neighbours import WORLDS, Worlds, in_world
from tests.audit.observing import differences, observed
from tests.stability.names import all_commands

NEIGHBOURS = [name for name in WORLDS if name not in ("one", "again", "secret")]
FEW = ("one", "secret", "six")
CALLED = [name for name, command in COMMANDS.items() if command.calls is not None]


def test_every_command_is_in_the_table():
    assert {name.removeprefix("fedcore ") for name, _ in all_commands()} == COMMANDS.keys()


def test_what_is_not_called_says_why():
    for name, command in COMMANDS.items():
        assert command.calls is not None or command.because, name
        assert all(item.because for item in command.may_differ), name


def test_the_documentation_has_the_tables():
    page = (flows.REPOSITORY / "docs/notes/privacy-audits.md").read_text()
    assert [row for row in [*rows(COMMANDS), *flows.rows()] if row not in page] == [], "python -m tests.audit.commands"


def traces_of(worlds, names, target) -> dict[str, dict[str, list[dict[str, bytes]]]]:
    """By world and command: what each call leaves. Commands run in the order of the table, on copies of the worlds,
    which are moved to the folder `target`.
    """
    published, found = dict(worlds.published), {}
    for name in worlds.built:
        world = worlds.copy(name)
        found[name] = {}
        for command in names:
            found[name][command] = []
            for arguments in COMMANDS[command].calls(world):
                with in_world(world, published):
                    found[name][command].append(observed(arguments, world.folder))
        world.folder.rename(target / name)
    return found


def different(traces, command, other) -> list[str]:
    """What the command's calls leave in the world `other`, and not in the first. A digest that is another under other
    secrets is not compared; in a world of the same secrets, all are."""
    hidden = "one" if other == "again" else "secret"
    return [
        f"call {number}, {difference}"
        for number, (one, two, under_others) in enumerate(
            zip(traces["one"][command], traces[other][command], traces[hidden][command], strict=True)
        )
        for difference in differences(one, two, under_others, COMMANDS[command].may_differ)
    ]


def table(found) -> list[str]:
    """Of each command and kind of neighbour whether what it leaves is equal, or differs as the table of commands
    declares."""
    lines = [f"| command | {' | '.join(NEIGHBOURS)} |", f"|---|{'---|' * len(NEIGHBOURS)}"]
    for command in found["one"]:
        cells = []
        for other in NEIGHBOURS:
            undeclared = different(found, command, other)
            sides = zip(*(found[world][command] for world in ("one", other, "secret")), strict=True)
            differs = any(differences(one, two, hidden) for one, two, hidden in sides)
            cells.append("NOT DECLARED" if undeclared else "declared" if differs else "equal")
        lines.append(f"| `{command}` | {' | '.join(cells)} |")
    return lines


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Without those in which a client is exchanged, where one more client changes as much and is seen in counts too, or
    nothing differs: other secrets hide no more than they must.
    """
    return Worlds(tmp_path_factory.mktemp("worlds"), FEW)


@pytest.fixture(scope="module")
def traces(worlds):
    return traces_of(worlds, CALLED, worlds.folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLED)
def test_calls_of_a_command_end_as_expected(traces, command):
    calls = traces["one"][command]
    codes = [int(call["exit code"]) for call in calls]
    assert codes == list(COMMANDS[command].exits or [0] * len(codes)), [call["stderr"][-600:] for call in calls]


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLED)
def test_two_worlds_of_the_same_clients_are_told_apart_by_nothing(traces, command):
    """Otherwise a difference would say nothing. Under other secrets, only what covers a secret differs."""
    assert different(traces, command, "secret") == []


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLED)
def test_a_command_tells_nothing_of_who_is_there(traces, command):
    assert different(traces, command, "six") == []


@pytest.mark.slow
@pytest.mark.heavy
def test_no_command_tells_anything_of_who_is_there(tmp_path):
    found = traces_of(Worlds(tmp_path, tuple(WORLDS)), CALLED, tmp_path)
    print("\n".join(table(found)))
    assert [line for other in WORLDS for command in CALLED for line in different(found, command, other)] == []


# --- what was found once, put back ------------------------------------------------------------------------------------

PUT_BACK = {
    "plans made with people": (sabotage.plans_made_with_people, "plan", 0, "stdout"),
    "plans with exact counts": (sabotage.plans_with_exact_counts, "plan", 1, "plan.json"),
    "exact starts on the same people": (sabotage.exact_starts_on_the_same_people, "train", 5, "runs/fff/start.zip"),
    "checksums without the secret": (sabotage.checksums_without_the_secret, "train", 0, "runs/aaa/run.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUT_BACK)
def test_what_was_found_once_is_found_again(tmp_path, monkeypatch, worlds, name):
    """Only the call that is about it is made. Checksums are also of what is there before it."""
    sabotaged, command, number, trace = PUT_BACK[name]
    calls = COMMANDS[command].calls
    only = replace(COMMANDS[command], calls=lambda world: calls(world)[number : number + 1])
    monkeypatch.setitem(COMMANDS, command, only)
    with sabotaged():
        of = Worlds(tmp_path, FEW) if sabotaged is sabotage.checksums_without_the_secret else worlds
        found = traces_of(of, [command], tmp_path)
    assert any(trace in line for line in different(found, command, "six"))


@pytest.mark.slow
def test_the_secrets_of_manifests_stay_in_them(traces, worlds):
    secrets = {json.loads(file.read_text())["secret"].encode() for file in worlds.folder.glob("one/*/versions/*.json")}
    assert len(secrets) >= 6
    told = {
        f"{command}: {name}"
        for command, calls in traces["one"].items()
        for call in calls
        for name, value in call.items()
        if any(secret in value for secret in secrets) and "/versions/" not in name
    }
    assert told == set()


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["runs/aaa/run.json", "ledger.sqlite: fedcore_records", "counts/ledger-head.json"])
def test_a_digest_that_a_secret_hides_is_not_taken_for_one_of_data(traces, trace):
    """It is there, and differs between the worlds: what is found again above is that no secret hides it."""
    assert len({traces[world]["train"][0][trace] for world in ("one", "six", "secret")}) == 3


# --- flows ------------------------------------------------------------------------------------------------------------


def test_every_flow_is_in_the_table():
    assert flows.flows_of_the_code() == flows.FLOWS.keys()
    assert all(flow.call is not None or flow.because for flow in flows.FLOWS.values())


def different_flows(traces, other) -> list[str]:
    hidden = "one" if other == "again" else "secret"
    return [
        f"{flow}, {difference}"
        for flow in traces["one"]
        for difference in differences(
            traces["one"][flow], traces[other][flow], traces[hidden][flow], flows.declared(flow)
        )
    ]


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_two_flows_tell_nothing_of_who_is_there(tmp_path_factory):
    """Those that show most; digests are left out, since there is no world of other secrets."""
    folder = tmp_path_factory.mktemp("flows")  # a name that needs no escapes in markdown
    found = {world: flows.traces_of(folder, world, ["train-histograms", "evaluate"]) for world in ("one", "six")}
    assert {flow["exit code"] for name, flow in found["one"].items() if name != "database"} == {b"0"}
    assert len(found["one"]["database"]["prefect log"]) > 1000 and found["one"]["database"]["prefect artifact"]
    assert b"fedcore.budget.charged" in found["one"]["database"]["prefect events"]
    assert b"fedcore_rho_spent" in found["one"]["train-histograms"]["fedcore.prom"]
    found["secret"] = {flow: {} for flow in found["one"]}
    assert different_flows(found, "six") == []


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.prefect
def test_no_flow_tells_anything_of_who_is_there(tmp_path_factory):
    names = [name for name, flow in flows.FLOWS.items() if flow.call is not None]
    folder = tmp_path_factory.mktemp("flows")  # a name that needs no escapes in markdown
    found = {world: flows.traces_of(folder, world, names) for world in WORLDS}
    assert {flow["exit code"] for name, flow in found["one"].items() if name != "database"} == {b"0"}
    for world in WORLDS:
        assert different_flows(found, world) == [], world
