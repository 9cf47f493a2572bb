"""Prefect flows: ingest, train, evaluate. They name steps and pass references; the mathematics is in fedcore."""

from fedcore.flows import settings

settings.apply()
