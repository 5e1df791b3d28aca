import pytest

from agentevolver.rollout.gateway.server import GatewayServer
from context_manager.chat import ChatRenderer
from tests.agentevolver.rollout.gateway.harness import tokenizer


@pytest.fixture(scope="session")
def renderer():
    return ChatRenderer(tokenizer())


@pytest.fixture
async def server():
    served = GatewayServer()
    await served.start()
    yield served
    await served.stop()
