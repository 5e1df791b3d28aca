"""Chat templates as the model families ship them, shortened: what they do to roles, thoughts and white space is kept.
And a tokenizer whose tokens reach over words and line breaks, as real ones do."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# A system message of its own if there is none; tool answers go into user turns, several in a row into one.
QWEN25 = (
    "{%- if messages[0]['role'] != 'system' -%}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' "
    "}}{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'tool' -%}"
    "{%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}"
    "{{ '\n<tool_response>\n' + m['content'] + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' -%}{{ '<|im_end|>\n' }}{%- endif -%}"
    "{%- else -%}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
# Refuses two messages of one role in a row.
STRICT = (
    "{%- for m in messages -%}"
    "{%- if not loop.first and messages[loop.index0 - 1]['role'] == m['role'] -%}{{ raise_exception('roles must "
    "alternate') }}{%- endif -%}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
# No token of its own before a reply: a line break that tokens reach over.
PLAIN = (
    "{%- for m in messages -%}{{ m['role'] + ': ' + m['content'] }}"
    "{%- if m['role'] == 'assistant' -%}{{ '<|im_end|>' }}{%- endif -%}{{ '\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'assistant:' }}{%- endif -%}"
)
# Mistral's third format (Nemo's): the system message and the tools stand in the last user message, a call's id has nine
# letters and digits, roles alternate; and its seventh, where the system message stays in front.
_MISTRAL = (
    "{%- set system = messages[0].content if messages[0].role == 'system' else none -%}"
    "{%- set said = messages[1:] if system is not none else messages -%}"
    "{%- set users = said | selectattr('role', 'equalto', 'user') | list -%}"
    "{%- set ns = namespace(user=true) -%}"
    "{%- for m in said -%}{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}"
    "{%- if (m.role == 'user') != ns.user -%}{{ raise_exception('roles must alternate user and assistant') }}{%- endif "
    "-%}{%- set ns.user = not ns.user -%}{%- endif -%}{%- endfor -%}"
    "{{ bos_token }}HEAD"
    "{%- for m in said -%}"
    "{%- if m.role == 'user' -%}"
    "{%- if tools and m == users[-1] -%}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif -%}"
    "{{ '[INST]' }}LAST{{ m.content + '[/INST]' }}"
    "{%- elif m.tool_calls -%}{{ '[TOOL_CALLS][' }}"
    "{%- for c in m.tool_calls -%}"
    "{%- if c.id is not defined or c.id | length != 9 -%}{{ raise_exception('call ids have 9 signs') }}{%- endif -%}"
    "{{ '{\"name\": ' + c.function.name | tojson + ', \"arguments\": ' + c.function.arguments | tojson }}"
    "{{ ', \"id\": ' + c.id | tojson + '}' + ('' if loop.last else ', ') }}{%- endfor -%}{{ ']' + eos_token }}"
    "{%- elif m.role == 'assistant' -%}{{ m.content + eos_token }}"
    "{%- elif m.role == 'tool' -%}"
    "{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 -%}"
    "{{ raise_exception('call ids have 9 signs') }}{%- endif -%}ANSWER"
    "{%- endif -%}{%- endfor -%}"
)
MISTRAL3 = (
    _MISTRAL.replace("HEAD", "")
    .replace("LAST", "{%- if system and m == users[-1] -%}{{ system + '\n\n' }}{%- endif -%}")
    .replace(
        "ANSWER",
        "{{ '[TOOL_RESULTS]{\"content\": ' + m.content | tojson + ', \"call_id\": ' + m.tool_call_id | tojson + "
        "'}[/TOOL_RESULTS]' }}",
    )
)
MISTRAL7 = (
    _MISTRAL.replace("HEAD", "{%- if system -%}{{ '[SYSTEM_PROMPT]' + system + '[/SYSTEM_PROMPT]' }}{%- endif -%}")
    .replace("LAST", "")
    .replace("ANSWER", "{{ '[TOOL_RESULTS]' + m.tool_call_id + '[TOOL_CONTENT]' + m.content + '[/TOOL_RESULTS]' }}")
)
MISTRAL_SPECIAL = (
    "<unk>",
    "<s>",
    "</s>",
    *(f"[{mark}{name}]" for name in ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS", "SYSTEM_PROMPT") for mark in ("", "/")),
    "[TOOL_CALLS]",
    "[TOOL_CONTENT]",
)


def merging_tokenizer(template, eos):
    """A byte-level BPE tokenizer with merges of letters, colons, spaces and line breaks."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [
        "user: go\n\n",
        "-\nassistant:",
        "assistant: act\n",
        "assistant:act",
        "system: s\n\n",
        "seen\n\nremove m1\n",
        "<think>\n\n</think>\n\n",
    ] * 9
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token="<|endoftext|>", chat_template=template
    )
