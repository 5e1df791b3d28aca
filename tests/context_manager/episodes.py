"""A context driven by hand: what the runner does, without one."""

OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]


def begin(template, renderer, limits, options=None, opening=OPENING, training=None):
    context = template(renderer, limits, options)
    context.start(opening, training)
    return context


def say(context, text, step, *, closed=True, kind="action", answers=None):
    """Let the policy say `text`; `answers` maps the kind of a side call to what is answered. Returns the prompt that it
    saw."""
    renderer = context.renderer
    while (call := context.housekeeping()) is not None:
        answer = (answers or {}).get(call.kind, "ok")
        if call.by == "policy":
            ids = [*renderer.encode(answer)[: call.max_new_tokens - 1], renderer.tokenizer.eos_token_id]
            context.answer(call, ids, [-1.0] * len(ids), step)
            step += 1
        else:
            context.settle(call, answer)
    prompt = context.next_prompt()
    ids = [*renderer.encode(text), *([renderer.tokenizer.eos_token_id] if closed else [])]
    context.record(ids, [-0.5] * len(ids), step, kind)
    return prompt


def turn(context, text, observation, step, role="user", **more):
    prompt = say(context, text, step, **more)
    context.observe([{"role": role, "content": observation}])
    return prompt


def shown(context, ids):
    """A prompt as text."""
    return context.renderer.tokenizer.decode(ids)
