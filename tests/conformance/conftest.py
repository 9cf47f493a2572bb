"""Runs of these tests do not wait for the disk."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
