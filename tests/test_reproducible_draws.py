"""Tests draw the same numbers in every CI run, except where the operating system's randomness is under test."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# Of the files that draw without a seed: why.
WITHOUT_A_SEED = {
    "audit/attack.py": "attacks the noise that protects people; the error probability is in audit/bounds.py",
    "audit/test_sites.py": "attacks the noise that protects people; the error probability is in audit/bounds.py",
    "audit/test_vocabulary.py": "attacks the noise that protects people; the error probability is in audit/bounds.py",
    "audit/world.py": "names of copies of files",
    "conftest.py": "names of ledgers",
    "conformance/broken.py": "a method that breaks the law: the checks must notice that it draws without a seed",
    "faults/place.py": "names of files",
    "privacy/conftest.py": "names of populations and runs",
    "privacy/test_mechanisms.py": "law and independence of the secure noise; each check fails by chance once in 10^7",
    "privacy/test_noise_law.py": "hands over the secure noise to a publisher that must refuse before it draws",
    "privacy/test_noise_shares.py": "law of the sum of secure shares; each check fails by chance once in 10^7",
    "privacy/test_opendp.py": "law of the secure noise of two libraries; each check fails by chance once in 10^6",
    "privacy/test_order.py": "the order of charges, draws and heads; no check looks at the noise",
    "privacy/test_rounded_gaussian.py": "law of the secure noise; each check fails by chance once in 10^6",
    "docs/test_showcase.py": "names of flow runs",
}
SECURE = {"urandom", "SystemBits", "SecureNoise", "SystemRandom", "uuid1", "uuid4", "getrandbits"}
SEEDED = {"default_rng", "Philox", "PCG64", "MT19937", "SFC64", "SeedSequence", "Random", "RandomState"}
PROPERTY = """
import os
from pathlib import Path
from hypothesis import given, settings, strategies as st

if "PYTEST_XDIST_WORKER" in os.environ:
    import constants

DRAWN = []

@settings(max_examples=200)
@given(st.floats(), st.lists(st.integers()))
def draw(x, numbers):
    DRAWN.append(repr((x, numbers)))

def test_draws():
    draw()
    place = os.environ.get("PYTEST_XDIST_WORKER", "main")
    Path(os.environ["DRAWN"], place).write_text("\\n".join(DRAWN))
"""


def unseeded(source: str) -> list[int]:
    """Lines that call a generator without a seed, or a global one."""
    tree = ast.parse(source)
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in ("random", "secrets")
    }
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _draws(node, modules)]


def _draws(call: ast.Call, modules: set[str]) -> bool:
    path = ast.unparse(call.func).split(".")
    if path[-1] in SEEDED:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return all(isinstance(value, ast.Constant) and value.value is None for value in given)
    if path[-1] in SECURE:
        return True
    if path[-1][0].isupper():  # a class, such as Generator(Philox(3))
        return False
    return path[0] in modules and len(path) == 2 or path[:-1] in (["np", "random"], ["numpy", "random"])


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("np.random.default_rng()", [1]),
        ("np.random.default_rng(None)", [1]),
        ("np.random.default_rng(0).normal()", []),
        ("np.random.Generator(np.random.Philox())", [1]),
        ("np.random.Generator(np.random.Philox(key=3))", []),
        ("np.random.normal(size=3)", [1]),
        ("import random\nrandom.shuffle(x)", [2]),
        ("import random\nrandom.Random(3).shuffle(x)", []),
        ("import random\nrandom.Random()", [2]),
        ("random = np.random.default_rng(3)\nrandom.shuffle(x)", []),
        ("import secrets\nsecrets.token_hex()", [2]),
        ("os.urandom(3)", [1]),
        ("uuid.uuid4()", [1]),
    ],
)
def test_a_draw_without_a_seed_is_found(source, lines):
    assert unseeded(source) == lines


@pytest.mark.slow
def test_every_draw_without_a_seed_says_why():
    found = {str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py") if unseeded(path.read_text())}
    assert found == set(WITHOUT_A_SEED)


@pytest.mark.slow  # Hypothesis builds its table of characters for each new folder
def test_property_tests_draw_the_same_examples_in_ci_in_every_process(tmp_path):
    """Also if one of them has imported a module with constants, which Hypothesis would draw."""
    (tmp_path / "test_property.py").write_text(PROPERTY)
    (tmp_path / "constants.py").write_text(f"FOUND = {[number + 0.25 for number in range(1000)]}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment = {**own, "CI": "true", "DRAWN": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    for workers in ("0", "1"):
        done = subprocess.run(
            [*command, "-n", workers, "test_property.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    drawn = (tmp_path / "main").read_text()
    assert drawn == (tmp_path / "gw0").read_text() and len(drawn.splitlines()) >= 200
