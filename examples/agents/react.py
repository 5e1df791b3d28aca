"""The built-in ReAct flow as an agent of one's own: every reply is an action. It gives the same tokens as the flow."""

from openai import AsyncOpenAI


async def play(task, endpoint, world):
    messages = world.messages
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        while True:
            reply = await client.chat.completions.create(model=endpoint.model, messages=messages)
            action = reply.choices[0].message.content
            answer = await world.step(action)
            if answer.over:
                return
            messages += [{"role": "assistant", "content": action}, *answer.messages]
