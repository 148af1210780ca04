"""Stock vLLM in a process of its own, answering requests as JSON lines; it proves first that no plugin is active.

Run as ``python stock_worker.py READ_FD WRITE_FD``, with one line of engine arguments first. Imports nothing else of ours.
"""

import importlib
import json
import os
import sys


def prove_stock(llm) -> dict:
    """Where each piece that the plugin replaces comes from in this process (I10)."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    config = core.vllm_config
    layers = config.compilation_config.static_forward_context
    attention = {type(layer.impl) for layer in layers.values() if hasattr(layer, "impl")}
    pieces = [type(core.scheduler), type(runner), *attention, AttentionBackendEnum.CPU_ATTN.get_class()]
    for name in ("v1.engine.core.EngineCore", "v1.engine.input_processor.InputProcessor"):
        module, _, cls = f"vllm.{name}".rpartition(".")
        owner = getattr(importlib.import_module(module), cls)
        pieces += [f for f in vars(owner).values() if callable(f)]
    foreign = sorted(f"{p.__module__}.{p.__qualname__}" for p in pieces if "minipic" in p.__module__)
    return {"minipic": os.environ.get("MINIPIC"), "foreign": foreign, "attention": len(attention)}


def main() -> None:
    source, sink = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    options = json.loads(source.readline())
    importlib.import_module("minipic_server.plugin").register()  # as vLLM does when the package is installed
    from vllm import LLM, SamplingParams

    llm = LLM(**options)
    print(json.dumps(prove_stock(llm)), file=sink, flush=True)
    for line in source:
        batch = json.loads(line)
        outs = llm.generate(
            [{"prompt_token_ids": ids} for ids, _ in batch],
            [SamplingParams(**params) for _, params in batch],
            use_tqdm=False,
        )
        answers = [
            {
                "tokens": list(out.outputs[0].token_ids),
                "logprobs": [
                    {str(t): entry.logprob for t, entry in row.items()} for row in out.outputs[0].logprobs or []
                ],
                "cached": out.num_cached_tokens or 0,
            }
            for out in outs
        ]
        print(json.dumps(answers), file=sink, flush=True)
    llm.reset_prefix_cache()


if __name__ == "__main__":
    main()
