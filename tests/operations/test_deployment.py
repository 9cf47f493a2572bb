"""Deployment files: read, checked, and their folders found wherever the command runs."""

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from annotated_types import Le, Lt
from pydantic import BaseModel

from fedcore.errors import ConfigError
from fedcore.methods.registry import make_method, method_class
from fedcore.operations.declared import DeclaredPopulation
from fedcore.operations.deployment import DeploymentFile, expectations, read_deployments, read_file
from fedcore.operations.schedule import Compute
from fedcore.rounds.method import settings_by_place
from fedcore.training.request import Series, TrainRequest
from tests.command import fedcore, private_population
from tests.conftest import small_counts
from tests.pipelines.places import HEAD, INGEST, OPEN, Place, step

WHOLE = """
[[deployment]]
name = "nightly"
method = "histograms"
population = "populations/blogs"
runs = "kept"
seed = 3
schedule = { cron = "0 3 * * *", timezone = "Europe/Berlin" }
tags = ["private", "blogs"]

[deployment.config]
epsilon = 0.5

[deployment.compute]
workers = 4

[[deployment]]
name = "by-hand"
method = "paper_histograms"
population = "/data/blogs"

[deployment.config]
algorithm = "fedavg"
"""
ENTRY = '[[deployment]]\nname = "a"\nmethod = "histograms"\npopulation = "p"\n'


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> Path:
        (tmp_path / "deployments.toml").write_text(text)
        return tmp_path / "deployments.toml"

    return write


def test_everything_that_can_be_said(file, tmp_path, monkeypatch):
    path = file(WHOLE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    nightly, by_hand = read_deployments("../" + path.name)
    assert nightly.name == "nightly" and nightly.seed == 3 and nightly.tags == ["private", "blogs"]
    assert Path(nightly.population) == tmp_path / "populations" / "blogs" and Path(nightly.runs) == tmp_path / "kept"
    assert (nightly.schedule.cron, nightly.schedule.timezone) == ("0 3 * * *", "Europe/Berlin")
    assert nightly.config == {"epsilon": 0.5} and nightly.compute == Compute(workers=4)
    assert by_hand.population == "/data/blogs" and Path(by_hand.runs) == tmp_path / "runs"
    assert by_hand.schedule is None and by_hand.seed == 0 and by_hand.compute == Compute()


@pytest.mark.parametrize(
    "schedule", ['cron = "0 3 * * *"', "interval = 3600", 'rrule = "FREQ=DAILY"'], ids=lambda text: text.split()[0]
)
def test_each_kind_of_schedule(file, schedule):
    (item,) = read_deployments(file(ENTRY + f"schedule = {{ {schedule} }}\n"))
    given = item.schedule.model_dump(exclude_none=True)
    assert given.pop("timezone") == "UTC" and given.keys() == {schedule.split()[0]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[deployment", "not valid TOML"),
        ("", "there is no [[deployment]] and no [[pipeline]]"),
        ("deployment = []", "there is no [[deployment]] and no [[pipeline]]"),
        (ENTRY + "schedule = []", "deployment.0.schedule"),
        (ENTRY + "schedule = [{ interval = 0 }]", "deployment.0.schedule.0.interval"),
        (ENTRY + "colour = 1", "'deployment.0.colour' is not a setting"),
        ("colour = 1\n" + ENTRY, "'colour' is not a setting"),
        (ENTRY.replace('"a"', '"a b"'), "deployment.0.name"),
        (ENTRY.replace('"a"', '""'), "deployment.0.name"),
        (ENTRY.replace('name = "a"\n', ""), "deployment.0.name"),
        (ENTRY + "seed = -1", "deployment.0.seed"),
        (ENTRY + 'tags = "a"', "deployment.0.tags"),
        (ENTRY + 'schedule = { cron = "0 3 * * *", rrule = "FREQ=DAILY" }', "exactly one of cron, interval and rrule"),
        (ENTRY + 'schedule = { timezone = "UTC" }', "exactly one of cron, interval and rrule"),
        (ENTRY + "schedule = { interval = 0 }", "deployment.0.schedule.interval"),
        (ENTRY + 'schedule = { cron = "0 3 * * *", colour = 1 }', "schedule.colour' is not a setting"),
        (ENTRY + ENTRY, "the same name"),
        (ENTRY.replace("histograms", "magic"), "no method 'magic'"),
        (ENTRY + "[deployment.config]\ncolour = 1", "'colour' is not a setting"),
        (ENTRY + "[deployment.config]\nepsilon = 0", "'epsilon'"),
        (ENTRY + "[deployment.compute]\nworkers = 0", "deployment.0.compute.workers"),
        (ENTRY + "retention = 0", "deployment.0.retention"),
        (ENTRY + 'promote = "sometimes"', "deployment.0.promote"),
        (ENTRY + 'promote = "if_better"', "needs evaluate_on"),
        (ENTRY + "tolerance = 0.1", "goes with promote"),
        (ENTRY + 'promote = "if_better"\nevaluate_on = "q"\ntolerance = -1', "deployment.0.tolerance"),
        (ENTRY + 'promote = "if_better"\nevaluate_on = "q"\ntolerance = inf', "deployment.0.tolerance"),
        ("[notify]\n" + ENTRY, "exactly one of webhook and block"),
        ("[notify]\nwebhook = 'http://a'\nblock = 'b'\n" + ENTRY, "exactly one of webhook and block"),
        ("[notify]\nwebhook = 'file:///etc/passwd'\n" + ENTRY, "notify.webhook"),
        ("[notify]\nblock = 'b'\nstates = []\n" + ENTRY, "notify.states"),
        (ENTRY + "[deployment.compute]\nthreads = 2", "'deployment.0.compute.threads' is not a setting"),
    ],
)
def test_what_is_refused(file, text, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_deployments(file(text))


STEP = '[[pipeline]]\nname = "p"\npopulation = "p"\n[[pipeline.step]]\ndo = "forget"\nafter_days = {}\n'


@pytest.mark.parametrize("days, words", [("1" * 26, "64 bits"), (36_601, "after_days"), (2**63 - 1, "after_days")])
def test_a_number_of_days_that_no_calendar_has_is_refused(file, days, words):
    with pytest.raises(ConfigError, match=words):
        read_file(file(STEP.format(days)))
    assert read_file(file(STEP.format(36_600))).pipeline[0].step[0].after_days == 36_600


def models_in(annotation) -> set[type[BaseModel]]:
    """The models that a setting of this type may hold, with those inside them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}.union(*(models_in(field.annotation) for field in annotation.model_fields.values()))
    return set().union(*map(models_in, get_args(annotation)))


def is_number(annotation) -> bool:
    return annotation in (int, float) or any(map(is_number, get_args(annotation)))


def test_every_number_of_a_file_of_deployments_has_an_upper_bound():
    unbounded = [
        name
        for model in models_in(DeploymentFile) - {DeclaredPopulation} | {TrainRequest}
        for name, field in model.model_fields.items()
        if is_number(field.annotation) and not any(isinstance(one, Le | Lt) for one in field.metadata)
    ]
    assert {*unbounded} == {"tolerance", "shares"}, "any finite difference of scores; parts that add up to at most 1"


@pytest.mark.parametrize(
    "given, expected",
    [
        ("previous", "previous"),
        ("./previous", "HERE/previous"),
        ("runs/first", "HERE/runs/first"),
        ("/data/start.npz", "/data/start.npz"),
    ],
)
def test_where_a_deployment_starts_from(file, tmp_path, given, expected):
    """A series of runs goes on from run to run; any other start is a place, relative to the file."""
    text = ENTRY + f'start_from = "{given}"\npublic_start_because = "it is a dictionary"\n'
    (item,) = read_deployments(file(text))
    where = Path(expected.replace("HERE", str(tmp_path)))
    assert item.start_from == given == expected or Path(item.start_from) == where
    assert item.public_start_because == "it is a dictionary"
    assert read_deployments(file(ENTRY))[0].start_from is None


def asked_for(item) -> set[str]:
    """The names of the parameters of the flow of a deployment."""
    from fedcore.flows.train import FLOWS

    return set(FLOWS[item.method].parameters.properties)


def test_the_flow_of_a_deployment_is_told_where_to_start(file):
    """Every parameter that is handed over is one of the flow's."""
    from fedcore.flows.serve import to_deployment

    (item,) = read_deployments(file(ENTRY + 'start_from = "previous"\n'))
    deployed = to_deployment(item)
    assert deployed.parameters["start_from"] == "previous" and deployed.parameters["public_start_because"] is None
    assert set(deployed.parameters) <= asked_for(item)


def test_the_form_has_the_main_settings_and_those_that_the_deployment_sets(file):
    """In their order: a server with PostgreSQL keeps no order of names, so places are numbers."""
    from fedcore.flows.serve import to_deployment
    from prefect.utilities.schema_tools import validate

    for more in ({}, {"rounds": 3}, {}):  # each deployment of a method has a form of its own
        setting = "".join(f"config = {{ {name} = {value} }}\n" for name, value in more.items())
        (item,) = read_deployments(file(ENTRY + setting))
        made = to_deployment(item)
        form, cls = made._parameter_openapi_schema, method_class(item.method)
        main, rest = settings_by_place(cls)
        assert list(form.properties) == ["population", "config", "version", "start_from"]
        shown = form.definitions[cls.Config.__name__]["properties"]
        assert sorted(shown, key=lambda name: shown[name]["position"]) == [*main, *more] and {*more} <= {*rest}
        assert all(one["title"] == name for name, one in shown.items()) and main == list(cls.main_settings)
        asked = {**made.parameters, "config": {**more, rest[-1]: None}, "seed": 3}
        validate(asked, form.model_dump(), raise_on_error=True)


def test_the_form_of_a_pipeline_asks_for_the_time_alone(tmp_path):
    from fedcore.flows.serve import pipeline_deployment
    from prefect.utilities.schema_tools import validate

    made = pipeline_deployment(Place(tmp_path, OPEN + HEAD + INGEST + step("train", deployment="open")).ready)
    form = made._parameter_openapi_schema
    assert list(form.properties) == ["at"] and form.required == []
    validate(made.parameters, form.model_dump(), raise_on_error=True)


def test_settings_of_an_algorithm_fit_the_form(file):
    from fedcore.flows.serve import to_deployment
    from prefect.utilities.schema_tools import validate

    entry = ENTRY.replace("histograms", "paper_histograms")
    (item,) = read_deployments(file(entry + 'config = { algorithm = "ifca", rounds = 3, weights = "local" }\n'))
    made = to_deployment(item)
    form = made._parameter_openapi_schema.definitions["PaperHistogramsConfig"]["properties"]["algorithm"]
    assert len(form["anyOf"]) == 5 and "oneOf" not in form, "the UI shows only the JSON of a oneOf"
    config = made.parameters["config"]
    assert config == {"algorithm": {"name": "ifca", "rounds": 3}, "weights": "local"}
    assert make_method(item.method, config) == make_method(item.method, item.config)
    validate(made.parameters, made._parameter_openapi_schema.model_dump(), raise_on_error=True)


def test_the_flow_of_a_deployment_is_told_which_share_pays(file):
    """One that names none is as it was before there were shares, so that hosts that know none go on with it."""
    from fedcore.flows.serve import to_deployment

    (item,) = read_deployments(file(ENTRY + 'share = "team-a"\n'))
    assert item.request.share == to_deployment(item).parameters["share"] == "team-a"
    assert set(to_deployment(item).parameters) <= asked_for(item)
    (item,) = read_deployments(file(ENTRY))
    assert item.request.share is None and "share" not in to_deployment(item).parameters
    with pytest.raises(ConfigError, match="share"):
        read_deployments(file(ENTRY + 'share = "a b"\n'))


def test_what_becomes_of_the_runs(file, tmp_path):
    more = 'evaluate_on = "public"\npromote = "if_better"\ntolerance = 0.5\nretention = 3\n'
    (item,) = read_deployments(file(ENTRY + more))
    where = str(tmp_path / "public")
    assert item.series == Series(evaluate_on=where, promote="if_better", tolerance=0.5, retention=3)
    assert read_deployments(file(ENTRY))[0].series == Series(promote="always", retention=None)
    (item,) = read_deployments(file(ENTRY + 'evaluate_on = "s3://bucket/public"\n'))
    assert item.evaluate_on == "s3://bucket/public"


def test_served_and_deployed_are_the_same_but_for_the_place(file):
    """They name their flow by module: no file of code is fetched."""
    from fedcore.flows.serve import to_deployment

    (item,) = read_deployments(file(ENTRY + "retention = 3\nschedule = { interval = 60 }\n"))
    served, deployed = to_deployment(item), to_deployment(item, "pool")
    assert served.parameters == deployed.parameters and deployed.parameters["series"]["retention"] == 3
    assert served.entrypoint == deployed.entrypoint == "fedcore.flows.train.train_histograms"
    assert (served.work_pool_name, deployed.work_pool_name) == (None, "pool")
    assert [len(each.schedules) for each in (served, deployed)] == [1, 1]
    module, name = deployed.entrypoint.rsplit(".", 1)
    assert getattr(import_module(module), name).name == "train-histograms"


def test_job_variables_are_for_the_pool(file):
    from fedcore.flows.serve import to_deployment

    (item,) = read_deployments(file(ENTRY + 'job_variables = { env = { A = "1" }, working_dir = "/data" }\n'))
    assert to_deployment(item, "pool").job_variables == {"env": {"A": "1"}, "working_dir": "/data"}
    assert not to_deployment(item).job_variables, "without a pool nobody would take them"


def test_a_start_that_comes_too_early_is_left_out(file):
    """If it waited, the starts that were missed would follow one another and each spend of the budget."""
    from fedcore.flows.serve import to_deployment

    (item,) = read_deployments(file(ENTRY))
    deployed = to_deployment(item)
    assert (deployed.concurrency_limit, deployed.concurrency_options.collision_strategy.value) == (1, "CANCEL_NEW")


def test_what_is_said_of_how_it_is_started_reaches_prefect(file):
    from fedcore.flows.limits import limit_name
    from fedcore.flows.serve import all_of, limits_of

    more = 'schedule = [{ cron = "0 3 * * *" }, { interval = 60 }]\npaused = true\ndescription = "of each night"\n'
    content = read_file(file(ENTRY + more + 'readers = 3\njob_variables = { env = { A = "b" } }\n'))
    (deployed,) = all_of(content, "pool")
    assert len(deployed.schedules) == 2 and deployed.paused and deployed.description == "of each night"
    assert deployed.job_variables == {"env": {"A": "b"}} and all_of(content)[0].job_variables == {}
    ((population, readers),) = limits_of(content).items()
    assert readers == 3 and re.fullmatch(r"fedcore-reads-p-[0-9a-f]{8}", limit_name(population, "reads"))


def test_a_name_that_a_person_gave_is_kept():
    from fedcore.flows.names import made_up
    from prefect.utilities.names import generate_slug

    assert all(made_up(generate_slug(2)) for _ in range(50))
    assert not any(map(made_up, ["my-run", "nightly", "brave-otter-2", "before the holidays", ""]))


@pytest.mark.parametrize(
    "schedule", ['cron = "every night"', 'rrule = "FREQ=SOMETIMES"', 'cron = "0 3 * * *", timezone = "Mars/Olympus"']
)
def test_a_schedule_that_prefect_refuses(file, schedule):
    from fedcore.flows.serve import to_deployment

    (item,) = read_deployments(file(ENTRY + f"schedule = {{ {schedule} }}\n"))
    with pytest.raises(ConfigError, match="deployment 'a'"):
        to_deployment(item)


@pytest.mark.parametrize(
    "address, words",
    [
        (None, "names no Prefect server"),
        ("http://127.0.0.1:9/api", "no Prefect server answers"),
        ("http://name:secret@127.0.0.1:9/api", "no Prefect server answers at http://127.0.0.1:9/api"),
        ("nonsense", "no Prefect server answers"),
    ],
)
def test_deploying_needs_a_server(file, monkeypatch, address, words):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    if address is not None:
        monkeypatch.setenv("PREFECT_API_URL", address)
    refused = fedcore("deploy", file(ENTRY), "--json")
    assert refused.code == 2 and refused.json["error"] == "ConfigError" and words in refused.json["message"]


@pytest.fixture
def locked_server():
    """Where a server answers each request with 401."""

    class Locked(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        def log_message(self, *given):
            pass

    server = HTTPServer(("127.0.0.1", 0), Locked)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "locked, words",
    [pytest.param(False, "no Prefect server answers", marks=pytest.mark.slow), (True, "wants a password")],
)
def test_a_flow_needs_the_server_that_is_named(locked_server, locked, words):
    from fedcore.flows.own_server import flow
    from prefect.settings import PREFECT_API_URL, temporary_settings

    begun = []
    away = temporary_settings({PREFECT_API_URL: locked_server if locked else "http://127.0.0.1:9/api"})
    with away, pytest.raises(ConfigError, match=words):
        flow(name="never")(lambda: begun.append(1))()
    assert not begun


@pytest.mark.parametrize("path", ["missing.toml", "."])
def test_a_file_that_cannot_be_read(tmp_path, path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_deployments(tmp_path / path)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "d.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_deployments(tmp_path / "d.toml")


SHIPPED = ["histograms", "federated_em", "gradient_em", "mixed_effects", "private_gmm", "private_mixture"]
SHIPPED += ["perma", "background", "dictionaries"]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_files_that_come_with_the_package_are_good(name):
    from fedcore.flows.serve import to_deployment

    import deployments

    (item,) = read_deployments(Path(deployments.__file__).with_name(f"{name}.toml"))
    assert item.method == name and item.schedule is not None and item.retention
    assert to_deployment(item).name == item.name
    method = make_method(item.method, item.config)
    if method.private:  # a schedule that a growing population never refuses
        assert method.private_settings.horizon is not None and method.private_settings.epsilon is None


def test_every_file_of_the_package_is_tested():
    import deployments

    assert {path.stem for path in Path(deployments.__file__).parent.glob("*.toml")} == {*SHIPPED, "pipeline"}


def test_the_pipeline_that_comes_with_the_package_is_good():
    """Its private training follows from nothing that a client sends, and its budgets do not end."""
    from fedcore.flows.pipeline import pipeline_flow
    from fedcore.flows.serve import all_of

    import deployments

    content = read_file(Path(deployments.__file__).with_name("pipeline.toml"))
    training, nightly = all_of(content)
    assert [training.name, nightly.name] == ["histograms", "nightly"] and len(nightly.schedules) == 1
    assert content.pipeline[0].labels == ["ingest", "forget", "train-histograms", "export-histograms"]
    assert nightly.entrypoint == "fedcore.flows.pipeline.pipeline_flow" and training.schedules == []
    assert set(nightly.parameters) <= set(pipeline_flow.parameters.properties)


def test_the_example_of_the_documentation_is_good(file):
    text = (Path(__file__).parents[2] / "docs" / "deployments.md").read_text()
    (item,) = read_deployments(file(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]))
    assert item.schedule is not None and item.compute


def test_schedules_say_what_to_expect_of_the_next_run(file, tmp_path):
    """By the budget that is left; nothing of a run that is not private, or of a population that is not here."""
    private_population(tmp_path / "p", small_counts(), epsilon=0.5, nominal=8)
    entry = ENTRY + "[deployment.config]\n"
    (line,) = expectations(read_deployments(file(entry)))
    assert line.startswith("a: what to expect of the next run, by the budget: none: ") and "will be refused" in line
    (line,) = expectations(read_deployments(file(entry + "anyway = true\n")))
    assert "budget: none: " in line and "refused" not in line
    entry = entry.replace("histograms", "paper_histograms")
    assert not expectations(read_deployments(file(entry + 'algorithm = "fedavg"\n')))
    assert not expectations(read_deployments(file(entry.replace('"p"', '"elsewhere"'))))
