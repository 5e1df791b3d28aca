"""smolagents' ToolCallingAgent. It tells its own calls again in other words, so each call is a chain of its own."""

from smolagents import OpenAIModel, Tool, ToolCallingAgent
from world import Episode, play_all


class WorldTool(Tool):
    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, episode: Episode, function: dict) -> None:
        parameters = function["parameters"]
        required = parameters.get("required", [])
        self.name = function["name"]
        self.description = function["description"]
        self.inputs = {
            key: {"type": one["type"], "description": one["description"], "nullable": key not in required}
            for key, one in parameters["properties"].items()
        }
        self.invoke = episode.caller(self.name)
        super().__init__()

    def forward(self, **arguments: object) -> str:
        return self.invoke(**arguments)


def play(episode: Episode) -> None:
    model = OpenAIModel(model_id=episode.model, api_base=episode.base_url, api_key=episode.api_key)
    tools = [WorldTool(episode, tool["function"]) for tool in episode.tools]
    agent = ToolCallingAgent(tools=tools, model=model, instructions=episode.rules, max_steps=10, verbosity_level=0)
    agent.run(episode.task)


play_all(play)
