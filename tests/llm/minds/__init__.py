"""What a competent and honest language model would say to each role's prompt, world by world.

A mind reads the prompt and nothing else of a run. What it knows beside that is how its world works (`worlds`): which
queries can be asked there, which actions fulfil each of them, what their answers are. A share of the tasks and
experiences that it makes up is wrong on purpose; all else is right, so that whatever goes wrong behind the reply was
done by what came between.
"""

from tests.llm.minds.minds import Minds, NotUnderstood, Thought
from tests.llm.minds.worlds import WORLDS, world_of_type

__all__ = ["WORLDS", "Minds", "NotUnderstood", "Thought", "world_of_type"]
