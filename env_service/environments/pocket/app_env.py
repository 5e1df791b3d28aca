"""PocketWorld in the paper's regime: one long goal, few tasks, one outcome at the end.

Tools, vocabulary, sites and quirks are those of pocket; the goals are in `app_tasks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from env_service.environments.pocket.app_tasks import APP, N_LINKS, app_task_ids, app_world, make_app_task
from env_service.environments.pocket.env import PocketEnv, PocketParams
from env_service.environments.pocket.tasks import OPEN, WorldTask, read_list_params, split_world_id
from env_service.environments.pocket.world import PocketWorld

MAX_CALLS = 30


@dataclass(frozen=True, slots=True)
class AppParams(PocketParams):
    """Pocket's parameters, with more slack in calls; an episode never has more than `MAX_CALLS`.

    - `links`: number of a goal's requests; below `N_LINKS`, goals are shorter and easier to learn from.
    """

    slack: int = 8
    explore_steps: int = 12
    links: int = N_LINKS

    def updated(self, params: dict[str, Any] | None) -> Self:
        # slots=True makes the class anew, so that a bare super() would look for the one before.
        made = super(AppParams, self).updated(params)
        if not 1 <= made.links <= N_LINKS:
            raise ValueError(f"parameter links={made.links} must be 1 to {N_LINKS}")
        return made


class PocketAppEnv(PocketEnv):
    _settings: AppParams

    @staticmethod
    def _usual() -> AppParams:
        return AppParams()

    def _begin(self) -> None:
        kind, site, seed = split_world_id(self.task_id, APP)
        task = None if kind == OPEN else make_app_task(self.task_id, self._settings.links)
        self.world: PocketWorld = app_world(site, task.world_seed if task else f"open-{seed}", self._settings.syntax)
        self.task: WorldTask | None = None if self._settings.is_open_query else task
        self.max_steps = self._settings.explore_steps
        if self.task:
            self.max_steps = min(MAX_CALLS, len(self.task.solution) + self._settings.slack)
        self.steps = 0
        self.errors = 0

    @staticmethod
    def get_query_list(split: str = "train", params: dict[str, Any] | None = None) -> list[str]:
        """Return the ids of train, dev, test or hard, `n` of them."""
        params = params or {}
        if "levels" in params:
            raise ValueError("the tasks of pocket_app have no levels, remove the parameter; the query list takes n")
        return app_task_ids(split, read_list_params(params)[0])
