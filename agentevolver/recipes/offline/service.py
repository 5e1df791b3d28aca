"""The teacher as a service of a launch."""

from __future__ import annotations

import sys

from agentevolver.launcher.stack import RESTARTS, Launch, Services, ServiceSpec
from agentevolver.llm.settings import OFFLINE
from agentevolver.recipes.offline.settings import TeacherSettings
from agentevolver.utils.net import take_url_from


def services(launch: Launch) -> Services | None:
    """Return the teacher on the first free port from its URL's on, or None if it plays no role. Raises LaunchError if
    no port is free."""
    llm = launch.settings.llm
    if not any(llm.endpoint(role).base_url == OFFLINE for role in launch.roles):
        return None
    settings = llm.teacher
    assert isinstance(settings, TeacherSettings)
    settings = settings.model_copy(update={"url": take_url_from("llm.teacher.url", settings.url)})
    spec = ServiceSpec(
        name="teacher",
        argv=(sys.executable, *settings.arguments()),
        log=launch.logs / "teacher.log",
        title=f"a rule-based stand-in for a language model, at {settings.url}",
        says_who=True,
        health_urls=(settings.health_url,),
        restarts=RESTARTS,
    )
    return Services((spec,), {"llm": {"teacher": {"url": settings.url}}})
