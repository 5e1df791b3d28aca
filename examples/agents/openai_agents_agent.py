"""An agent made with openai-agents: the environment's tools are its tools, the policy is its model."""

from agents import Agent, FunctionTool, OpenAIResponsesModel, RunConfig, Runner, ToolsToFinalOutputResult
from openai import AsyncOpenAI


async def play(task, endpoint, world):
    answers = []

    async def call(context, arguments):
        function = {"name": context.tool_name, "arguments": arguments}
        calls = [{"id": context.tool_call_id, "type": "function", "function": function}]
        answers.append(await world.step({"role": "assistant", "content": None, "tool_calls": calls}))
        return answers[-1].text

    def ended(context, results):
        return ToolsToFinalOutputResult(is_final_output=answers[-1].over)

    functions = [tool["function"] for tool in world.tools]
    tools = [
        FunctionTool(one["name"], one["description"], one["parameters"], call, strict_json_schema=False)
        for one in functions
    ]
    system, user = (message["content"] for message in world.messages)
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        model = OpenAIResponsesModel(endpoint.model, client)
        agent = Agent("clerk", instructions=system, tools=tools, model=model, tool_use_behavior=ended)
        await Runner.run(agent, user, max_turns=None, run_config=RunConfig(tracing_disabled=True))
