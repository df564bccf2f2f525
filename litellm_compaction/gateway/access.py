"""Who may use the group that writes summaries: LiteLLM's own checks, for a group the caller did not name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from litellm._logging import verbose_proxy_logger
from litellm.exceptions import BudgetExceededError

from litellm_compaction.gateway.operator import Operator
from litellm_compaction.gateway.router import is_served
from litellm_compaction.gateway.told import Told
from litellm_compaction.settings import Settings

if TYPE_CHECKING:
    from litellm.proxy._types import UserAPIKeyAuth
    from litellm.router import Router


class Writers:
    """Chooses the group that writes a summary."""

    def __init__(self, operator: Operator) -> None:
        self._operator: Final = operator
        self._told: Final = Told()

    async def choose(
        self, router: Router | None, group: str, settings: Settings, caller: object
    ) -> tuple[str, Settings]:
        """The operator's `summary_model` where the caller may use and pay it, else the group the client named, which
        LiteLLM has checked at the door; and the settings of the one or the other. `settings`: those of `group`.

        `caller` is LiteLLM's UserAPIKeyAuth. Without one nobody is restricted, as in LiteLLM: a program that uses the
        router as a library has no callers.
        """
        from litellm.proxy._types import UserAPIKeyAuth

        wished: Final = settings.summary_model
        if wished is None or wished == group:
            return group, settings
        if router is not None and isinstance(caller, UserAPIKeyAuth) and not await may_use(router, wished, caller):
            self._tell(group, wished)
            return group, settings
        team: Final = caller.team_id if isinstance(caller, UserAPIKeyAuth) else None
        return wished, self._operator.resolve(router, wished, team)[0]

    def _tell(self, group: str, wished: str) -> None:
        """A warning once an hour: nobody is refused, and the operator may have meant it otherwise."""
        if self._told.is_new(group, wished):
            verbose_proxy_logger.warning(
                "litellm_compaction: model=%s: a caller may not use summary_model %s, or has no budget for it; %s "
                "writes such a caller's summaries",
                group,
                wished,
                group,
            )


async def may_use(router: Router, group: str, caller: UserAPIKeyAuth) -> bool:
    """Whether LiteLLM would let the caller's key, team, user, project and end user ask for `group` now, and has
    deployments of it for the caller's team. What cannot be looked up is not allowed."""
    if not is_served(router, group, caller.team_id):
        return False
    try:
        await _check_access(router, group, caller)
        await _check_budgets(router, group, caller)
    except Exception as refused:  # noqa: BLE001  # LiteLLM refuses by a dozen classes; a failed look-up refuses too
        verbose_proxy_logger.debug("litellm_compaction: %s is not for this caller: %s", group, type(refused).__name__)
        return False
    return True


async def _check_access(router: Router, group: str, caller: UserAPIKeyAuth) -> None:
    from litellm.proxy import proxy_server
    from litellm.proxy.auth import auth_checks

    await auth_checks.can_key_call_resolved_model(
        model=group, llm_model_list=None, valid_token=caller, llm_router=router
    )
    # The user's own list counts for keys that belong to no team; LiteLLM has users where it has a database.
    if caller.team_id is None and caller.user_id is not None and proxy_server.prisma_client is not None:
        user: Final = await auth_checks.get_user_object(
            user_id=caller.user_id,
            prisma_client=proxy_server.prisma_client,
            user_api_key_cache=proxy_server.user_api_key_cache,
            user_id_upsert=False,
            proxy_logging_obj=proxy_server.proxy_logging_obj,
        )
        await auth_checks.can_user_call_model(model=group, llm_router=router, user_object=user)


async def _check_budgets(router: Router, group: str, caller: UserAPIKeyAuth) -> None:
    """Budgets that the door has not looked at: those of one model, and all where the named model costs nothing."""
    await _check_model_budgets(group, caller)
    try:
        from litellm.proxy.auth.fallback_budget import is_token_within_budget_for_model
    except ImportError:  # an older LiteLLM asks nobody again when a fallback is dearer than what was named
        return
    if not await is_token_within_budget_for_model(model=group, valid_token=caller, llm_router=router):
        raise BudgetExceededError(current_cost=0, max_budget=0)


async def _check_model_budgets(group: str, caller: UserAPIKeyAuth) -> None:
    """Raises BudgetExceededError where the key, user, team, member or end user has spent its budget for this model.

    Older versions of LiteLLM know fewer of them.
    """
    from litellm.proxy import proxy_server

    limiter: Final = getattr(proxy_server, "model_max_budget_limiter", None)
    owners: Final = {
        "user": {"user_id": caller.user_id},
        "end_user": {"end_user_id": caller.end_user_id},
        "team": {"team_id": caller.team_id},
        "team_member": {"user_id": caller.user_id, "team_id": caller.team_id},
    }
    if caller.model_max_budget and limiter is not None:
        await limiter.is_key_within_model_budget(user_api_key_dict=caller, model=group)
    for owner, ids in owners.items():
        check = getattr(limiter, f"is_{owner}_within_model_budget", None)
        budget = getattr(caller, f"{owner}_model_max_budget", None)
        if check is None or not budget or not all(ids.values()):
            continue
        own = {"key_model_max_budget": caller.model_max_budget} if owner == "team" else {}
        await check(**ids, **own, **{f"{owner}_model_max_budget": budget}, model=group)
