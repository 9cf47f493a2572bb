"""Metrics of a run sent to an OTLP endpoint by the OpenTelemetry SDK, which the extra `telemetry` installs.

Endpoint, headers, interval and the like are those of the variables OTEL_EXPORTER_OTLP_* and OTEL_METRIC_EXPORT_*.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource


class Exporter:
    """Sends the values as they are at each interval, and at the end.

    values: by name, changed by their owner; metrics: of each name as it is sent that of its value, whether it counts,
    unit, and what it is
    """

    def __init__(
        self,
        values: Mapping[str, float],
        metrics: Mapping[str, tuple[str, bool, str, str]],
        labels: Mapping[str, str],
        run: str,
    ):
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # a missing endpoint is not reported every time
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        resource = Resource.create({"service.name": "fedcore", "service.instance.id": run})
        self.provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        meter = self.provider.get_meter("fedcore")
        attributes = {f"fedcore.{name}": value for name, value in labels.items()}
        for sent, (name, counts, unit, what) in metrics.items():
            make = meter.create_observable_counter if counts else meter.create_observable_gauge
            make(sent, [_observed(values, name, attributes)], unit=unit, description=what)

    def end(self) -> None:
        """Send the last values."""
        self.provider.shutdown(timeout_millis=3000)


def _observed(
    values: Mapping[str, float], name: str, attributes: Mapping[str, str]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def look(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(values[name], dict(attributes))] if name in values else []

    return look
