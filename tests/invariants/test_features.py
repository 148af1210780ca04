"""Whatever stock vLLM does for a request works for span requests: stop strings, grammars, LoRA, bfloat16, aborts."""

import json
from dataclasses import replace

import pytest
import torch

from invariants.checks import assert_differ, assert_exact
from invariants.engines import Ask
from reference.corpus import words
from reference.hf import HFReference
from reference.prompts import PromptSpec, dep, head, span

HEAD, QUESTION = words(21, 1), words(9, 2)
A, B, C = (words(n, 70 + n) for n in (40, 15, 90))
SPEC = PromptSpec((head(*HEAD), span(*A), span(*B), dep(*QUESTION)), anchor=4)


@pytest.fixture
def spoken(engine):
    """An engine with a tokenizer."""
    return engine(skip_tokenizer_init=False)


def test_stop_strings(spoken, reference):
    text = spoken.ask(SPEC, 40).text
    stop = text[12:15]
    answer = spoken.ask(SPEC, 40, params={"stop": [stop]})
    assert answer.text == text[: text.index(stop)]
    assert_exact(answer, reference(), SPEC)


def test_stop_token_ids(spoken):
    tokens = spoken.ask(SPEC, 20).tokens
    answer = spoken.ask(SPEC, 20, params={"stop_token_ids": [tokens[7]]})
    assert answer.tokens == tokens[: tokens.index(tokens[7]) + 1]


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [({"choice": ["Paris", "Rome", "Oslo"]}, None), ({"regex": r"[ab]{8}"}, "ab")],
    ids=["choice", "regex"],
)
def test_structured_output(spoken, reference, constraint, allowed):
    pytest.importorskip("lmformatenforcer")  # vLLM imports every grammar backend
    from vllm.sampling_params import StructuredOutputsParams

    params = {"structured_outputs": StructuredOutputsParams(**constraint), "ignore_eos": False}
    cold, warm = (spoken.ask(SPEC, 12, params=params) for _ in range(2))
    assert cold.text == warm.text
    text = cold.text.removesuffix("</s>")
    assert set(text) <= set(allowed) and len(text) == 8 if allowed else text in constraint["choice"]
    rows = reference().logprobs(SPEC, cold.tokens[:-1])
    for token, row, logprobs in zip(cold.tokens, rows, cold.logprobs, strict=True):
        possible = [t for t, p in logprobs.items() if p > float("-inf")]  # fewer than the 8 reported
        assert token == max(possible, key=lambda t: float(row[t]))
        whole = torch.logsumexp(row[possible], 0)
        assert max(abs(logprobs[t] - float(row[t] - whole)) for t in possible) < 1e-3


def test_penalties_and_minimum_lengths_see_visible_text_only(spoken, stock):
    """A repetition penalty counts the prompt's tokens: control ids and padding are never sampled anyway."""
    spec = PromptSpec((head(*HEAD), dep(*QUESTION)))
    options = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 6}
    assert spoken.ask(spec, 12, params=options).tokens == stock().run(spec.bare(), tokens=12, **options)[0].tokens


def test_an_aborted_request_leaves_nothing_wrong_behind(engine, reference):
    """Aborted in the middle of a span: what it had published is whole blocks, and its waiters go on."""
    it = engine(max_num_batched_tokens=24, max_num_seqs=8)
    specs = [PromptSpec((head(*HEAD), span(*C), span(*A), dep(*words(9, 20 + i))), anchor=4) for i in range(3)]
    core = it.llm.llm_engine
    ids = []
    for i, spec in enumerate(specs):
        prompt, params = Ask(spec).engine_input()
        ids.append(core.add_request(f"r{i}", prompt, params))
    core.step()
    core.step()
    assert it.met["chunk ends inside a span"]
    core.abort_request([ids[0]], internal=True)
    done = []
    while core.has_unfinished_requests():
        done += [out for out in core.step() if out.finished]
    assert len([out for out in done if not out.request_id.startswith("r0")]) == 2
    for spec in specs:
        assert_exact(it.ask(spec), reference(), spec)


@pytest.fixture(scope="module")
def adapters(checkpoint, tmp_path_factory):
    """Two LoRA adapters: (directory of the adapter, directory of the merged model) each."""
    from safetensors.torch import load_file, save_file

    out = []
    base = load_file(checkpoint() / "model.safetensors")
    for number in (1, 2):
        torch.manual_seed(number)
        lora, merged = {}, dict(base)
        for layer in range(2):
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = f"model.layers.{layer}.self_attn.{name}.weight"
                rows, columns = base[weight].shape
                a, b = torch.randn(8, columns) / columns**0.5, torch.randn(rows, 8) / 8**0.5
                lora[f"base_model.{weight[:-7]}.lora_A.weight".replace("model.layers", "model.model.layers")] = a
                lora[f"base_model.{weight[:-7]}.lora_B.weight".replace("model.layers", "model.model.layers")] = b
                merged[weight] = base[weight] + b @ a
        path = tmp_path_factory.mktemp(f"lora{number}")
        for folder, tensors, file in (("adapter", lora, "adapter_model"), ("merged", merged, "model")):
            (path / folder).mkdir()
            save_file(tensors, path / folder / f"{file}.safetensors", metadata={"format": "pt"})
        (path / "merged/config.json").write_text((checkpoint() / "config.json").read_text())
        config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "bias": "none", "task_type": "CAUSAL_LM"}
        config |= {"target_modules": ["q_proj", "k_proj", "v_proj"], "base_model_name_or_path": str(checkpoint())}
        (path / "adapter/adapter_config.json").write_text(json.dumps(config))
        out.append((path / "adapter", path / "merged"))
    return out


@pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM's LoRA kernels on GPUs know no float32")
def test_lora_adapters_never_share_spans(engine, reference, adapters):
    from vllm.lora.request import LoRARequest

    it = engine(enable_lora=True, max_loras=2, max_lora_rank=8)
    loras = [None, *(LoRARequest(f"adapter{i}", i, str(path)) for i, (path, _) in enumerate(adapters, 1))]
    references = [reference(), *(HFReference(merged) for _, merged in adapters)]
    whole = (len(SPEC.physical()) - 1) // 16 * 16
    cold = [it.ask(SPEC, lora=lora) for lora in loras]
    assert [answer.cached for answer in cold] == [0, 0, 0]
    assert_differ(cold[0], cold[1])
    assert_differ(cold[1], cold[2])
    other = replace(SPEC, pieces=(SPEC.pieces[0], SPEC.pieces[2], SPEC.pieces[1], SPEC.pieces[3]))
    for lora, ref, first in zip(loras, references, cold, strict=True):
        assert_exact(first, ref, SPEC, tolerance=2e-3)
        again = it.ask(SPEC, lora=lora)
        assert again.cached == whole
        assert_exact(again, ref, SPEC, tolerance=2e-3)
        assert_exact(it.ask(other, lora=lora), ref, other, tolerance=2e-3)
    scheduler = it.llm.llm_engine.engine_core.engine_core.scheduler
    span_a = SPEC.physical()[32:80]  # behind the head's two blocks
    named = [None, *((lora.lora_name, lora.lora_path) for lora in loras[1:]), ("adapter3", "/elsewhere")]
    asked = [{"ids": span_a, "anchor": list(HEAD[:4]), "salt": None, "lora": lora} for lora in named]
    assert [answer[2] > 0 for answer in scheduler.minipic("lookup", asked)] == [True, True, True, False]
    # Without a base request among them: stock vLLM's CPU kernels give it the last adapter's weights (index -1).
    for answer, ref in zip(it.run(*(Ask(other, lora=lora) for lora in loras[1:])), references[1:], strict=True):
        assert_exact(answer, ref, other, tolerance=2e-3)


@pytest.mark.parametrize("block", [16, 32])
def test_bfloat16_is_as_near_to_float32_as_stock_is(engine, stock, reference, block):
    """Spans in bf16 against the fp32 reference, stock in bf16 on plain text against the same model in fp32."""
    it, plain = engine(dtype="bfloat16", block_size=block), stock(dtype="bfloat16")
    specs = [PromptSpec((head(*HEAD), span(*C), span(*words(40, s)), dep(*QUESTION)), anchor=4, block=block) for s in range(6)]  # fmt: skip

    def gap(answer, spec):
        rows = reference().logprobs(spec, answer.tokens[:-1])
        gaps = [abs(p - float(row[t])) for row, lp in zip(rows, answer.logprobs, strict=True) for t, p in lp.items()]
        return sum(gaps) / len(gaps)

    everything = [PromptSpec((head(*spec.bare()),)) for spec in specs]
    stocks = [gap(a, e) for a, e in zip(plain.run(*(e.bare() for e in everything)), everything, strict=True)]
    cold = [gap(a, s) for a, s in zip(it.run(*map(Ask, specs)), specs, strict=True)]
    warm = [gap(a, s) for a, s in zip(it.run(*map(Ask, specs)), specs, strict=True)]
    assert max(sum(cold), sum(warm)) < 1.5 * sum(stocks), (cold, warm, stocks)
