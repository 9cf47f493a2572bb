"""Numbers about runs: the text file that Prometheus reads, and what an OTLP endpoint is sent."""

import gzip
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedcore.operations import metrics
from fedcore.operations.metrics import METRICS, otlp_name, prometheus_name, to_prometheus
from fedcore.operations.monitoring import Monitoring
from tests.command import fedcore, private_population, works
from tests.conftest import small_counts, write_counts

NOT_PRIVATE = ("--set", "algorithm=algorithm2", "--set", "clusters=2", "--set", "rounds=3", "--local", "--json")


def parsed(text: str) -> dict[str, tuple[float, dict[str, str]]]:
    return {
        sample.name: (sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_have_units_and_do_not_meet():
    assert (
        len({prometheus_name(name) for name in METRICS}) == len({otlp_name(name) for name in METRICS}) == len(METRICS)
    )
    assert prometheus_name("rounds") == "fedcore_rounds_total"
    assert prometheus_name("round_seconds_total") == "fedcore_round_seconds_total"
    assert prometheus_name("rho_left") == "fedcore_rho_left" and otlp_name("rho_left") == "fedcore.rho.left"


def test_labels_may_hold_anything():
    found = parsed(to_prometheus({"rounds": 2.0}, {"population": 'a "b"\\\nc'}))
    assert found == {"fedcore_rounds_total": (2.0, {"population": 'a "b"\\\nc'})}


def test_each_deployment_of_a_file_has_its_own():
    watched = Monitoring(metrics="/metrics/")
    assert watched.of_run("weekly").metrics_file == "/metrics/fedcore-weekly.prom"
    assert Monitoring().of_run("weekly").metrics_file is None


def test_a_text_file_for_prometheus(tmp_path, monkeypatch):
    """Counts of what was done, by method and population; readable by others, and whole at any time."""
    population, ledger = private_population(tmp_path / "people", small_counts(), epsilon=1.0)
    monkeypatch.setenv(metrics.FILE, "")  # the command sets it
    file, runs = tmp_path / "textfiles" / "fedcore.prom", tmp_path / "runs"
    file.parent.mkdir()
    settings = ("--set", "clusters=2", "--set", "rounds=2", "--set", "epsilon=0.5", "--set", "anyway=true")
    where = ("--runs", runs, "--metrics-file", file)
    works("train", "histograms", population.path, *where, *settings, "--local", "--json")
    found = parsed(file.read_text())
    value = {name: number for name, (number, _) in found.items()}
    assert value.keys() == {prometheus_name(name) for name in METRICS}
    labels = {"method": "histograms", "population": "people", "population_id": population.id}
    assert all(given == labels for _, given in found.values())
    rounds = value["fedcore_rounds_total"]
    assert rounds >= 2 and value["fedcore_clients_asked_total"] == 50 * rounds
    assert value["fedcore_block_bytes_total"] == sum(population.sizes()) * rounds
    balance = ledger.balance(population.id)
    assert (value["fedcore_rho_spent"], value["fedcore_rho_left"]) == (balance.rho_spent, balance.rho_left)
    assert value["fedcore_run_active"] == 0 and value["fedcore_round_seconds_total"] > 0
    assert abs(value["fedcore_last_round_timestamp_seconds"] - time.time()) < 600
    assert list(file.parent.iterdir()) == [file] and file.stat().st_mode & 0o444 == 0o444


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    population = write_counts(tmp_path / "p", small_counts())
    monkeypatch.setenv(metrics.FILE, str(tmp_path / "missing" / "fedcore.prom"))
    done = works("train", "paper_histograms", population.path, "--runs", tmp_path / "runs", *NOT_PRIVATE)
    assert done.json["status"] == "finished" and done.err.count("metrics cannot be written") == 1


@contextmanager
def endpoint(delay=0.0):
    """(URL, the bodies that were sent to it)."""
    bodies = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            bodies.append((self.path, self.headers["content-type"], body))
            time.sleep(delay)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()


@pytest.mark.slow
def test_an_otlp_endpoint_is_sent_the_same(tmp_path, monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra telemetry is not installed")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    population = write_counts(tmp_path / "p", small_counts())
    with endpoint() as (url, bodies):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        where = ("--runs", tmp_path / "runs", "--run-id", "r")
        rounds = works("train", "paper_histograms", population.path, *where, *NOT_PRIVATE).json["rounds"]
    path, kind, body = bodies[-1]
    assert (path, kind) == ("/v1/metrics", "application/x-protobuf")
    (sent,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    about = {item.key: item.value.string_value for item in sent.resource.attributes}
    assert (about["service.name"], about["service.instance.id"]) == ("fedcore", "r")
    values = {}
    for metric in sent.scope_metrics[0].metrics:
        counts = metric.WhichOneof("data") == "sum"
        (point,) = (metric.sum if counts else metric.gauge).data_points
        values[metric.name] = (point.as_double, metric.unit, counts)
        told = {item.key: item.value.string_value for item in point.attributes}
        assert told == {
            "fedcore.method": "paper_histograms",
            "fedcore.population": "p",
            "fedcore.population_id": population.id,
        }
    assert values["fedcore.rounds"] == (rounds, "{round}", True)
    assert values["fedcore.clients.asked"] == (50 * rounds, "{client}", True)
    assert values["fedcore.block.bytes"][:2] == (rounds * sum(population.sizes()), "By")
    assert values["fedcore.run.active"][0] == 0 and "fedcore.rho.left" not in values


@pytest.mark.slow
@pytest.mark.parametrize("what", ["nobody", "hangs"])
def test_an_endpoint_that_does_not_answer_delays_no_run(tmp_path, monkeypatch, what):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra telemetry is not installed")
    monkeypatch.setattr(metrics, "PATIENCE", 0.5)
    ended = []
    end = metrics.Meter.close

    def close(meter):
        began = time.monotonic()
        end(meter)
        ended.append(time.monotonic() - began)

    monkeypatch.setattr(metrics.Meter, "close", close)
    population = write_counts(tmp_path / "p", small_counts())
    with endpoint(delay=20.0) as (url, _):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url if what == "hangs" else "http://127.0.0.1:9")
        works("train", "paper_histograms", population.path, "--runs", tmp_path / "runs", *NOT_PRIVATE)
    assert 0 < ended[0] < 3.0


@pytest.mark.slow
def test_without_the_extra_there_is_one_warning(tmp_path, monkeypatch):
    population = write_counts(tmp_path / "p", small_counts())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delitem(sys.modules, "fedcore.operations.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    done = fedcore("train", "paper_histograms", population.path, "--runs", tmp_path / "runs", *NOT_PRIVATE)
    assert done.code == 0 and done.err.count('pip install -e ".[telemetry]"') == 1
