"""Prefect's settings, which are made before it is first imported: no telemetry, and a patient first start; lines of log
as JSON if FEDCORE_LOG asks for them.

A setting that the user made stays.
"""

import os

DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",  # the first start makes a database
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",  # task runs reach the UI sooner
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "DASK_LOGGING__DISTRIBUTED": "error",
    # Each new version of an artifact is also an event that holds all of it.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_EVENT_RETENTION_OVERRIDES": (
        '{"prefect.artifact-collection.updated": 3600, "prefect.artifact-collection.created": 3600, '
        '"prefect.flow-run.heartbeat": 604800}'
    ),
}
JSON_LINES = {
    "PREFECT_LOGGING_FORMATTERS_JSON_CLASS": "fedcore.operations.log_lines.JsonLines",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_CLASS": "fedcore.operations.log_lines.LineHandler",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_FORMATTER": "json",
    "PREFECT_LOGGING_HANDLERS_DEBUG_FORMATTER": "json",
}


def apply() -> None:
    wanted = DEFAULTS | (JSON_LINES if os.environ.get("FEDCORE_LOG") == "json" else {})
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
