"""The budget of a model group as it holds for one request: a value taken once, so that a reload does not change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cachetools import TTLCache
from litellm._logging import verbose_proxy_logger

from litellm_compaction.budget.arithmetic import Budget, ImpossibleBudget
from litellm_compaction.budget.limits import ModelLimits
from litellm_compaction.gateway.catalogue import list_deployments
from litellm_compaction.gateway.limits import group_budget, read_limits
from litellm_compaction.gateway.operator import Mode, Operator
from litellm_compaction.gateway.profiles import read_profile
from litellm_compaction.gateway.told import Told
from litellm_compaction.settings import Settings

if TYPE_CHECKING:
    from litellm.router import Router

_LEARNED_GROUPS: Final = 4096
_LEARNED_SECONDS: Final = 24 * 3600.0
_LEAST_WINDOW: Final = 2048


class Windows:
    """Windows in tokens that backends have named in refusals, by model group, for a day."""

    def __init__(self) -> None:
        self._seen: Final[TTLCache[str, int]] = TTLCache(_LEARNED_GROUPS, _LEARNED_SECONDS)

    def learn(self, group: str, window: int | None) -> None:
        """The smallest counts: it may be that of one of several deployments. None is not remembered, nor a window too
        small to summarise anything in: every later compaction would be given up without a try."""
        if window is not None and window >= _LEAST_WINDOW:
            self._seen[group] = min(window, self._seen.get(group, window))

    def of(self, group: str) -> int | None:
        return self._seen.get(group)


@dataclass(frozen=True, slots=True)
class GroupBudget:
    """What holds for one group: its settings, who compacts, its limits; `budget` None where the limits are unknown.
    `count_error` is the share by which a count may fall short of the model's own."""

    settings: Settings
    mode: Mode
    limits: ModelLimits
    budget: Budget | None
    count_error: float


class Budgets:
    """Budgets of all groups, from the operator's settings, LiteLLM's router and what refusals have taught."""

    def __init__(self, operator: Operator) -> None:
        self._operator: Final = operator
        self._windows: Final = Windows()
        self._told: Final = Told(_LEARNED_SECONDS)

    def of(self, router: Router, group: str, team: str | None) -> GroupBudget:
        """The smallest of a group's deployments. Numbers that make no budget are told once and count as unknown."""
        settings, mode = self._operator.resolve(router, group, team)
        known: Final = read_limits(router, group, team, self._operator.settings_of)
        # What a refusal has taught comes last here: one number misread must not shrink a window somebody has written.
        limits: Final = known if known.context is not None else self.limits(router, group, team)
        error: Final = read_profile(router, group, team).count_error
        return GroupBudget(settings, mode, limits, self._derive(router, group, team, limits, settings), error)

    def limits(self, router: Router, group: str, team: str | None) -> ModelLimits:
        """A group's limits for a summary's own request, lowered to what its backends have named in refusals."""
        known: Final = read_limits(router, group, team, self._operator.settings_of)
        return known.lowered_to(self._windows.of(group))

    def learn(self, group: str, window: int | None) -> None:
        """A backend of the group has named its window in a refusal."""
        self._windows.learn(group, window)

    def _derive(
        self, router: Router, group: str, team: str | None, limits: ModelLimits, settings: Settings
    ) -> Budget | None:
        try:
            deployments: Final = list_deployments(router, group, team)
            return group_budget(deployments, self._operator.settings_of, limits, settings)
        except ImpossibleBudget as impossible:
            if self._told.is_new(group):
                verbose_proxy_logger.warning(
                    "litellm_compaction: model=%s has no budget: %s (%s)", group, impossible, limits.source
                )
            return None
