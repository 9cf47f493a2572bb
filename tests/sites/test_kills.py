"""`kill -9` of one site at every step: all end in the bits of one place, and what was lost costs this site alone."""

from fractions import Fraction

import pytest

from tests.sites.kills import STEPS, killed
from tests.sites.world import World, one_place, rounds_of, same_bits, to_end

pytestmark = pytest.mark.slow

JOINING = ("key made", "member posted")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield World.make(folder)


@pytest.mark.parametrize("step", STEPS)
def test_each_site_in_turn_is_killed_and_goes_on(world, step):
    """Steps of a round: the first site in round 1, the second one in round 2, the third one in round 3."""
    number = 1 + list(STEPS).index(step)
    sessions = world.start_all(number)
    rounds = dict(zip(world.names, (1, 2, 3), strict=True))
    for victim in world.names:
        sessions.pop(victim).close()
        for _ in range(20):
            for session in sessions.values() if step not in JOINING else ():
                rounds_of(session)
            if killed(world.folder, victim, number, step, rounds[victim]):
                break
        else:
            pytest.fail(f"{victim} does not come to the step")
        sessions[victim] = world.resume(victim, number)
    plan = sessions["a"].spec.releases
    runs = to_end(sessions.values())
    assert {run.status for run in runs} == {"finished"}
    alone = one_place(world, number)
    assert all(same_bits(run, alone) for run in runs)
    charged = world.publishing("a", number).charged(plan)
    for name in world.names:
        again = [one.rho for one in charged if step == "charged" and one.round == rounds[name]]  # lost, drawn again
        assert world.spent(name, number) == sum(map(Fraction, [*(one.rho for one in charged), *again]))
        assert world.replayed(name).runs[f"run-{number}"]["status"] == "finished"
