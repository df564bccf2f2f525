"""The computed budget in the rows of `/model/info`.

LiteLLM asks no callback about those rows. It writes them from the router's own list of deployments, so that is where
the numbers are put: once the router is there, and again when it is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from litellm_compaction.budget.arithmetic import ImpossibleBudget
from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway.limits import deployment_limits
from litellm_compaction.gateway.operator import Operator
from litellm_compaction.gateway.router import current_router

if TYPE_CHECKING:
    from litellm.router import Router

KEY: Final = "compaction_budget"
_POLL_SECONDS, _START_SECONDS = 0.1, 120.0


class Listing:
    """Writes `compaction_budget` into each deployment's `model_info`; null where the limits are unknown."""

    def __init__(self, operator: Operator) -> None:
        self._operator: Final = operator
        self._listed: tuple[int, int] | None = None
        self._starting: asyncio.Task[None] | None = None
        with contextlib.suppress(RuntimeError):  # made outside of a proxy, which has a loop by now
            self._starting = asyncio.get_running_loop().create_task(self._wait_for_router())

    def refresh(self, router: Router | None) -> None:
        """Write again if there is another router, or another number of deployments, than the last time."""
        if router is None or self._listed == (now := (id(router), len(router.model_list))):
            return
        self._listed = now
        for deployment in router.model_list:
            info = deployment.get("model_info")
            if isinstance(info, dict):
                info[KEY] = _budget(deployment, self._operator)

    async def _wait_for_router(self) -> None:
        """LiteLLM loads callbacks before it has a router: wait for it, and give up where none comes."""
        for _ in range(int(_START_SECONDS / _POLL_SECONDS)):
            router = current_router()
            if router is not None:
                self.refresh(router)
                return
            await asyncio.sleep(_POLL_SECONDS)


def _budget(deployment: Any, operator: Operator) -> dict[str, int | str | None] | None:
    try:
        settings: Final = operator.settings_of(deployment)
        limits: Final = deployment_limits(deployment, settings)
        budget: Final = limits.budget(settings.threshold_rule, settings.threshold)
    except (ImpossibleBudget, SettingsError):  # of a model added while the proxy runs: a request is told
        return None
    if budget is None:
        return None
    return {
        "context": budget.context,
        "output": budget.output,
        "max_input": budget.max_input,
        "input": budget.input,
        "threshold": budget.threshold,
        "source": limits.source,
    }
