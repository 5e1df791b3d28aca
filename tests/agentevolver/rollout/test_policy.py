"""verl's rollout servers as the policy of an episode, and as the model of a role."""

import asyncio
import pickle

import pytest
from ray.exceptions import RayTaskError

from agentevolver.llm.errors import LLMUnavailable, ServedModel
from agentevolver.rollout.engine import EngineError, EngineRefused, Generated
from agentevolver.rollout.policy import VerlEngine
from tests.answers import answering


class Reply:
    def __init__(self, ids, log_probs, stop_reason="completed"):
        self.token_ids, self.log_probs, self.stop_reason = ids, log_probs, stop_reason
        self.extra_fields = {"min_global_steps": 1, "max_global_steps": 2}


class Server:
    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    async def generate(self, request_id, prompt_ids, sampling_params):
        self.asked.append(sampling_params)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.sleep(10)
        return self.answer


async def test_the_engine_returns_what_the_server_sampled():
    generated = await VerlEngine(Server(Reply([5, 6], [-1.0, -2.0])), 1).generate("r", [1], {})
    assert generated == Generated([5, 6], [-1.0, -2.0], 1, 2)


async def test_a_request_keeps_its_seed_where_kernels_are_deterministic_and_not_elsewhere():
    server = Server(Reply([5], [-1.0]))
    for seeded in (True, False):
        await VerlEngine(server, 1, seeded=seeded).generate("r", [1], {"seed": 7, "temperature": 1.0})
    assert [asked.get("seed") for asked in server.asked] == [7, None]


@pytest.mark.service
async def test_vllm_is_asked_for_whole_replies_and_for_text_only_where_a_stop_string_needs_it():
    server = Server(Reply([5], [-1.0]))
    for asked in ({"max_tokens": 9}, {"max_tokens": 9, "stop": ["</answer>"]}):
        await VerlEngine(server, 1).generate("r", [1], asked)
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    plain, stopped = (SamplingParams(**pickle.loads(pickle.dumps(asked))) for asked in server.asked)
    assert plain.output_kind == stopped.output_kind == RequestOutputKind.FINAL_ONLY
    assert (plain.detokenize, stopped.detokenize) == (False, True)


class VLLMClientError(Exception):
    pass


class VLLMValidationError(VLLMClientError):
    pass


GRAMMAR = VLLMValidationError("Grammar error: Unknown format: path")


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (GRAMMAR, True),
        (RayTaskError("generate", "Traceback\nGrammar error: path", GRAMMAR).as_instanceof_cause(), True),
        (ValueError("no reply"), False),
        (RuntimeError("the engine died"), False),
        (TimeoutError(), False),
        (ConnectionError("away"), False),
        (RayTaskError("generate", "Traceback", RuntimeError("dead")).as_instanceof_cause(), False),
    ],
)  # fmt: skip
async def test_only_a_mistake_of_the_request_is_refused_by_the_engine(error, refused):
    with pytest.raises(EngineError) as caught:
        await VerlEngine(Server(error), 5.0).generate("r", [1], {})
    assert isinstance(caught.value, EngineRefused) == refused


@pytest.mark.parametrize(
    "answer", [Reply([], None, "aborted"), Reply([5], None), Reply([5, 6], [-1.0]), RuntimeError("engine died"), None]
)
async def test_the_engine_turns_every_failure_into_one_kind_of_error(answer):
    with pytest.raises(EngineError):
        await VerlEngine(Server(answer), 0.05).generate("r", [1], {})


@pytest.fixture
def address():
    """The list of models of an OpenAI-compatible server."""

    def models(asked):
        known = asked.headers["authorization"] == "Bearer of this run"
        return (200 if asked.path == "/v1/models" else 404) if known else 401, b'{"data": [{"id": "tiny"}]}'

    with answering(models) as url:
        yield url.removeprefix("http://")


class Router:
    """verl's client as far as the policy's address is concerned: one server, acquired and released."""

    def __init__(self, address):
        self.address, self.held = address, 0

    async def _acquire_server(self, request_id, **_):
        if self.address is None:
            raise RuntimeError("no server")
        self.held += 1
        return self.address, object()

    def _release_server(self, server_id, request_id=None):
        self.held -= 1


async def test_a_role_of_the_policy_is_asked_where_the_rollouts_are_with_the_runs_key_alone(address):
    router = Router(address)
    served = await VerlEngine(router, 5, lambda: "of this run").served()
    assert served == ServedModel(f"http://{address}/v1", "tiny", "of this run") and router.held == 0
    with pytest.raises(LLMUnavailable, match="401"):
        await VerlEngine(Router(address), 5, lambda: "of another").served()
