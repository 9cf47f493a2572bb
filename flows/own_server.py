"""Flows that are called where Prefect knows no server. Prefect would start one that is open to every user of the host;
they are given the one of `fedcore.flows.server`, which stays until this process ends.
"""

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from fedcore.flows.server import GIVEN, check_reachable, server, without_login
from prefect import Flow
from prefect.context import FlowRunContext, refresh_global_settings_context
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import get_current_settings

from fedcore.errors import ConfigError

UNREACHED = "Failed to reach API"  # how Prefect's error begins if its server does not answer
_running = ExitStack()


def knows_a_server() -> bool:
    """Whether Prefect's settings (or the environment) name a server, which then shows what flows do."""
    return bool(get_current_settings().api.url)


def _check_answer(error: Exception, address: str) -> None:
    """Raises ConfigError if the error is that the server at this address does not answer, or wants a password."""
    if isinstance(error, PrefectHTTPStatusError) and error.response.status_code == 401:
        raise ConfigError(
            f"the Prefect server at {address} wants a password, or another one.", f"Set {GIVEN} to name:password."
        ) from error
    if isinstance(error, RuntimeError) and str(error).startswith(UNREACHED):
        check_reachable(address)


class OwnServerFlow(Flow):
    """A Prefect flow that, when it is called, finds a server that nobody else can use.

    A call raises ConfigError if the server that Prefect's settings name does not answer or wants a password.
    """

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        inside = FlowRunContext.get() is not None  # a flow that has found a server, wherever it is
        ephemeral = get_current_settings().server.ephemeral.enabled
        if not knows_a_server() and ephemeral and not inside:
            _running.enter_context(server(ui=False))
            atexit.register(_running.close)
            refresh_global_settings_context()
        try:
            return super().__call__(*arguments, **named)
        except (RuntimeError, PrefectHTTPStatusError) as error:
            if not inside:
                _check_answer(error, without_login(get_current_settings().api.url or ""))
            raise

    def with_options(self, **options: Any) -> Flow:
        changed = super().with_options(**options)
        changed.__class__ = OwnServerFlow  # Prefect makes a plain one
        return changed


def flow(**options: Any) -> Callable[[Callable[..., Any]], Flow]:
    """As Prefect's decorator of this name."""
    return lambda function: OwnServerFlow(function, **options)
