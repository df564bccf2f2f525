"""A router that only knows which deployments a group has."""

from __future__ import annotations

from typing import Any

Deployments = list[dict[str, Any]]


class FakeRouter:
    """Knows the deployments of one group, and another's of a team."""

    def __init__(self, deployments: Deployments | None, of_team: Deployments | None = None) -> None:
        self.deployments = deployments
        self.of_team = of_team

    def get_model_list(self, model_name: str, team_id: str | None = None) -> Deployments | None:
        assert model_name == "group"
        return self.deployments if team_id is None else self.of_team
