"""Samples from vLLM's own engine with our worker, in this process, and prints what came of each prompt in several
companies, as JSON."""

from __future__ import annotations

import json
import os
import random
import sys

os.environ |= {
    "VERL_PLATFORM": "cpu",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
os.environ |= {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
WORKER = "agentevolver.trainer.verl_plugin.vllm_worker.CpuWorkerExtension"


def main() -> None:
    from vllm import LLM, SamplingParams

    from agentevolver.recipes.offline.seed import seed_policy_path

    # Of these prompts not two fit into one pass, whole.
    llm = LLM(
        model=str(seed_policy_path()),
        dtype="float32",
        enforce_eager=True,
        max_model_len=576,
        max_num_batched_tokens=576,
        enable_chunked_prefill=False,
        worker_extension_cls=WORKER,
    )
    chance = random.Random(1)
    opening = [chance.randrange(10, 300) for _ in range(260)]
    prompts = [[*opening, *(chance.randrange(10, 300) for _ in range(40 + i))] for i in range(12)]

    def sampled(which: list[int], *others: SamplingParams) -> dict[int, object]:
        seeded = [
            SamplingParams(temperature=1.0, max_tokens=24, logprobs=0, seed=1000 + i, ignore_eos=True) for i in which
        ]
        asked = [{"prompt_token_ids": prompts[i]} for i in (*which, *range(len(others)))]
        outputs = [output.outputs[0] for output in llm.generate(asked, [*seeded, *others], use_tqdm=False)]
        read = {}
        for i, output in zip(which, outputs, strict=False):
            read[i] = [list(output.token_ids), [next(iter(step.values())).logprob.hex() for step in output.logprobs]]
        return read

    everybody = list(range(len(prompts)))
    alone: dict[int, object] = {}
    for i in everybody[::3]:
        alone |= sampled([i])
    strangers = (SamplingParams(temperature=1.0, max_tokens=40), SamplingParams(temperature=0.0, max_tokens=40))
    companies = {"alone": alone, "together": sampled(everybody), "in another order": sampled(everybody[::-1])}
    companies["beside an unseeded and a greedy request"] = sampled(everybody, *strangers)
    print(json.dumps(companies), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
