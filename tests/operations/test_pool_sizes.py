"""Machines sized by the plan: what each type of pool is told; the image and the templates of the package."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedcore
from fedcore.errors import ConfigError
from fedcore.operations import pool_sizes
from fedcore.operations.deployment import Compute, Deployment
from fedcore.operations.pool_sizes import (
    HEADROOM,
    IMAGE,
    STEP,
    Size,
    for_pool,
    job_variables,
    merged,
    not_taken,
    outside_of_containers,
    planned_size,
    size_of,
)
from tests.command import fedcore as command
from tests.conftest import small_counts, write_counts

HERE = Path(__file__).parents[2]
MIB = 2**20
PLAN = {
    "workers": 3,
    "bytes_of_flow": 300 * MIB,
    "bytes_per_worker": 200 * MIB,
    "disk_bytes_most": 5 * MIB,
    "seconds": 12.34,
}
SIZE = Size(3, 3, 960 * MIB, 1408 * MIB, 5 * MIB, 12.34)


def item(**more) -> Deployment:
    return Deployment(**{"name": "a", "method": "histograms", "population": "/p", "runs": "/runs", **more})


def test_a_container_holds_all_processes_of_a_run():
    assert size_of(PLAN) == SIZE
    assert SIZE.limit_bytes >= HEADROOM * 900 * MIB and SIZE.limit_bytes % STEP == SIZE.memory_bytes % STEP == 0
    assert size_of({**PLAN, "workers": 0}).cores == 1
    alone = size_of(PLAN, elsewhere=True)
    assert (alone.workers, alone.cores, alone.memory_bytes) == (0, 1, 320 * MIB), "the workers have their own machines"


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("process", {}),
        ("docker", {"image": IMAGE, "mem_limit": "1408m", "memswap_limit": "1408m"}),
        ("kubernetes", {"image": IMAGE, "cpu_request": "3", "memory_request": "960Mi", "memory_limit": "1408Mi"}),
    ],
)
def test_what_each_type_of_pool_is_told(kind, expected):
    found = job_variables(kind, SIZE)
    assert set(found.pop("env").values()) == {"1"} and found == expected
    assert job_variables(kind, None) == ({} if kind == "process" else {"image": IMAGE})
    if kind != "process":
        assert not not_taken({**found, "env": {}}, template(kind)), "its template knows them"


def test_what_the_file_says_stands():
    given = item(job_variables={"env": {"A": "1", "OMP_NUM_THREADS": "4"}, "mem_limit": "9g"}, compute={"workers": 2})
    made = for_pool(given, "docker", SIZE)
    assert made.job_variables["mem_limit"] == "9g" and made.job_variables["memswap_limit"] == "1408m"
    assert made.job_variables["env"] == {**pool_sizes.THREADS, "A": "1", "OMP_NUM_THREADS": "4"}
    assert made.compute.workers == 3 and given.compute.workers == 2 and given.job_variables["mem_limit"] == "9g"
    assert for_pool(item(), "process").job_variables == {} and for_pool(item(), "process").compute == Compute()
    elsewhere = for_pool(item(compute={"dask": "tls://scheduler:8786"}), "process", SIZE)
    assert elsewhere.compute == Compute(dask="tls://scheduler:8786")
    assert merged({}, {}) == {} and merged({"env": {}}, {"env": {"A": None}}) == {"env": {"A": None}}


def test_folders_that_a_container_does_not_see_are_told():
    (line,) = outside_of_containers([item(), item(population="s3://b/p", runs="s3://b/r")])
    assert line.startswith("a: /p, /runs: a container sees folders only where")
    assert outside_of_containers([item(job_variables={"volumes": ["/p:/p"]})]) == []


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_workers_are_those_of_the_file_or_as_many_as_the_deadline_needs(tmp_path, monkeypatch):
    """Without a calibration: only what is asked of the plan, and what is made of it."""
    asked = []

    def plans(request, where, *, limit, meet_deadline):
        asked.append((where.workers, where.cluster, where.deadline, where.cache_bytes, limit, meet_deadline))
        return PLAN

    monkeypatch.setattr(pool_sizes, "plan_run", plans)
    assert planned_size(item(compute={"workers": 3, "cache_bytes": 7}), 60.0, 2.0) == SIZE
    assert planned_size(item(compute={"dask": "tcp://x"}), None, 2.0).workers == 0
    assert asked == [(3, False, 60.0, 7, 2.0, True), (None, True, None, Compute().cache_bytes, 2.0, True)]


@pytest.mark.slow
def test_a_real_plan_sizes_a_deployment(tmp_path):
    write_counts(tmp_path / "q", small_counts(4000, 50), leaf=16, block=64)
    slow = item(method="paper_histograms", population=str(tmp_path / "q"), runs=str(tmp_path / "runs"))
    size = planned_size(slow, 1e6, 0.5)
    assert size.workers == 0 and size.cores == 1, "one process meets it"
    assert 64 * MIB < size.memory_bytes < size.limit_bytes < 4 * 2**30
    with pytest.raises(ConfigError, match="deployment 'a' cannot be sized: no number of workers"):
        planned_size(slow, 1e-6, 0.5)


def test_what_cannot_be_planned_is_named(tmp_path):
    with pytest.raises(ConfigError, match="deployment 'a' cannot be sized: There is no population|'a' cannot be sized"):
        planned_size(item(population=str(tmp_path / "missing")), None, 0.5)


# --- the command ------------------------------------------------------------------------------------------------------

FILE = '[[deployment]]\nname = "a"\nmethod = "histograms"\npopulation = "p"\nruns = "runs"\n'


@pytest.fixture
def deployed(monkeypatch, tmp_path):
    """`fedcore deploy` of FILE without a server; what would be registered is appended to `registered`."""
    registered, pool = [], SimpleNamespace(kind="docker", template=template("docker"))
    modules = {
        "fedcore.flows.server": SimpleNamespace(check_reachable=lambda address: None),
        "fedcore.flows.pools": SimpleNamespace(ready_pool=lambda name, asked: (asked or pool.kind, pool.template)),
        "fedcore.flows.deploy": SimpleNamespace(
            deploy=lambda content, name: registered.extend(getattr(content, "deployment", content)) or []
        ),
        "fedcore.flows.notify": SimpleNamespace(notify=lambda settings, name, deployments: None),
    }
    monkeypatch.setattr("fedcore.cli.serving.import_module", modules.__getitem__)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(pool_sizes, "plan_run", lambda request, where, **more: PLAN)
    (tmp_path / "d.toml").write_text(FILE)
    return lambda *options: (command("deploy", tmp_path / "d.toml", "--unchecked", *options), registered, pool)


def test_deploy_sizes_what_it_registers(deployed):
    done, (made,), _ = deployed("--size-from-plan", "--json")
    assert done.code == 0 and made.job_variables["mem_limit"] == "1408m" and made.compute.workers == 3
    (row,) = done.json["sizes"]
    assert (row["deployment"], row["cores"], row["memory limit"]) == ("a", 3, "1408 MiB")
    assert "a container sees folders only where they are mounted" in done.err


def test_deploy_without_it_names_the_image_alone(deployed):
    done, (made,), _ = deployed("--json")
    assert done.code == 0 and made.job_variables == {"image": IMAGE} and "sizes" not in done.json
    done, made, _ = deployed("--type", "process", "--json")
    assert done.code == 0 and made[1].job_variables == {}


def test_what_a_template_does_not_know_is_refused(deployed):
    _, _, pool = deployed("--json")
    pool.template = {"variables": {"properties": {"env": {}, "image": {}}}}
    done, registered, _ = deployed("--size-from-plan", "--json")
    assert done.code == 2 and "does not know mem_limit, memswap_limit" in done.json["message"] and len(registered) == 1


def test_a_deadline_goes_with_a_plan(deployed):
    done, registered, _ = deployed("--deadline", "30m", "--json")
    assert done.code == 2 and not registered


# --- the image and the templates --------------------------------------------------------------------------------------


def template(kind: str) -> dict:
    return json.loads((HERE / "deployments" / f"{kind}.json").read_text())


def placeholders(value) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(placeholders, value.values()))
    if isinstance(value, list):
        return set().union(*map(placeholders, value))
    return set(re.findall(r"{{ (\w+) }}", value)) if isinstance(value, str) else set()


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
def test_a_template_uses_the_variables_that_it_declares(kind):
    made = template(kind)
    assert set(made) == {"job_configuration", "variables"}
    assert placeholders(made["job_configuration"]) == made["variables"]["properties"].keys()
    assert {"name", "command", "env", "labels"} <= made["job_configuration"].keys()
    for name, variable in made["variables"]["properties"].items():
        assert variable["description"].endswith(".") and variable["title"] and variable["type"], name


def test_the_job_of_a_cluster_is_one(tmp_path):
    """The structure of batch/v1, as far as it is used."""
    manifest = template("kubernetes")["job_configuration"]["job_manifest"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    job, pod = manifest["spec"], manifest["spec"]["template"]["spec"]
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never", "a run is resumed, not started again"
    assert {"parallelism", "completions", "ttlSecondsAfterFinished", "backoffLimit", "template"} == set(job)
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "{{ cpu_request }}", "memory": "{{ memory_request }}"},
        "limits": {"cpu": "{{ cpu_limit }}", "memory": "{{ memory_limit }}"},
    }
    assert pod["securityContext"]["runAsNonRoot"] and not container["securityContext"]["allowPrivilegeEscalation"]
    assert f"--uid {pod['securityContext']['runAsUser']} " in (HERE / "deployments" / "Dockerfile").read_text()


KNOWN = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile; comments are left out and lines that go on are joined."""
    text = "\n".join(
        line for line in (HERE / "deployments" / "Dockerfile").read_text().splitlines() if not line.startswith("#")
    )
    lines = [line.strip() for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_dockerfile_is_one():
    found = instructions()
    names = [name for name, _ in found]
    assert set(names) <= KNOWN and names[0] == "FROM" and names.count("FROM") == 1 and names[-1] == "CMD"
    assert re.fullmatch(r"[\w.-]+:[\w.-]+", found[0][1]) and "latest" not in found[0][1], "a version that is named"
    for name, rest in found:
        if name in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest), "a list, so that no shell stands between"
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((HERE / source).exists() for source in sources) and not any(
                Path(s).is_absolute() for s in sources
            )
        if name == "RUN" and "apt-get" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists" in rest
    users = [rest for name, rest in found if name == "USER"]
    assert users and users[-1] != "root" and names.index("USER") > names.index("RUN")
    assert not any("PYTHONDONTWRITEBYTECODE" in rest for _, rest in found), "it doubles the time of every start"


def test_the_image_holds_what_the_package_is_made_of():
    import tomllib

    project = tomllib.loads((HERE / "pyproject.toml").read_text())
    copied = {source for name, rest in instructions() if name == "COPY" for source in rest.split()[:-1]}
    folders = set(project["tool"]["setuptools"]["package-dir"].values())
    assert folders | {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]} == copied
    (installed,) = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    extras = re.search(r'"\.\[(.*?)\]"', installed)[1].split(",")
    assert set(extras) <= project["project"]["optional-dependencies"].keys()
    assert f"-t {IMAGE} " in (HERE / "deployments" / "Dockerfile").read_text() and IMAGE.endswith(fedcore.__version__)
