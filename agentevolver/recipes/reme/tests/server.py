"""The experience service with an empty store and a scripted summariser, for the tests of all servers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from agentevolver.recipes.reme.service import ExperienceService, create_app
from agentevolver.utils.web.access import Access
from experience_manager.settings import ExperienceSettings
from experience_manager.store import Store
from tests.experience_manager.experience_fakes import SMALL, teller
from tests.servers import Served, Server


async def _make(stack: AsyncExitStack, folder: Path, token: str) -> Served:
    store = stack.enter_context(Store(folder / "store.sqlite"))
    settings = ExperienceSettings()
    service = ExperienceService(settings, store, SMALL, teller(), author="m", dump_dir=folder / "dumps")
    app = create_app(service, Access("127.0.0.1", token, "EXPERIENCE_SERVICE_TOKEN"))
    return Served(app, app)


SERVER = Server(_make, ("POST", "/vector_store", b'{"action": "delete"}'), health="/health")
