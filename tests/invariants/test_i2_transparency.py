"""I2: the model never sees control tokens or padding; what can't be mapped back to visible tokens is refused."""

import pytest
import torch

from invariants.checks import assert_exact, assert_same
from invariants.engines import CONTROL, Ask
from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

HEAD, REST, QUESTION = words(21, 1), words(53, 2), words(9, 3)
A, B = words(40, 31), words(15, 32)
DEPENDENT = {
    "head-and-rest": PromptSpec((head(*HEAD), dep(*REST))),
    "three-pieces": PromptSpec((head(*HEAD), dep(*A), dep(*B), dep(*QUESTION))),
    "no-head": PromptSpec((dep(*REST),)),
    "head-of-whole-blocks": PromptSpec((head(*words(32, 4)), dep(*REST))),
    "one-token": PromptSpec((dep(5),)),
    "anchor-declared": PromptSpec((head(*HEAD), dep(*A), dep(*QUESTION)), anchor=4),
    "empty-pieces": PromptSpec((head(*HEAD), dep(), dep(), dep(*QUESTION))),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_everything_dependent_is_what_stock_says_of_the_bare_tokens(engine, stock, name):
    it, spec = engine(), DEPENDENT[name]
    bare = stock().run(spec.bare(), tokens=8)[0]
    assert_same(it.ask(spec, 8), bare)
    assert_same(it.ask(spec, 8), bare)  # from the cache


def test_control_tokens_are_not_embedded_in_anything_visible(engine, checkpoint, reference, tmp_path):
    """With huge embeddings for the control ids every leak would show."""
    import shutil

    from safetensors.torch import load_file, save_file

    loud = tmp_path / "loud"
    shutil.copytree(checkpoint(), loud)
    weights = load_file(loud / "model.safetensors")
    weights["model.embed_tokens.weight"][list(CONTROL)] = float("nan")
    save_file(weights, loud / "model.safetensors", metadata={"format": "pt"})
    it = engine(model=loud)
    for spec in (PromptSpec((head(*HEAD), span(*A), span(*B), dep(*QUESTION)), anchor=4), DEPENDENT["three-pieces"]):
        assert_exact(it.ask(spec), reference(), spec)
        assert_exact(it.ask(spec), reference(), spec)


@pytest.mark.parametrize(
    "pieces",
    [
        (head(*HEAD), span(*A), span(), span(*B), dep(*QUESTION)),
        (span(), dep(*QUESTION)),
        (head(*HEAD), span(), dep(), dep(*QUESTION)),
    ],
    ids=["among-spans", "nothing-before-the-question", "nothing-but-the-head"],
)
def test_empty_key_sets_and_unwritten_slots_never_become_nan(engine, reference, pieces):
    it, spec = engine(), PromptSpec(pieces)
    it.poison()
    for _ in range(2):
        assert_exact(it.ask(spec, 20), reference(), spec)
    it.poison()
    for answer in it.run(*[Ask(spec, 20)] * 3):
        assert_exact(answer, reference(), spec)


def test_invisible_rows_are_zero_not_left_over(engine, reference):
    """A chunk of padding alone, beside others: its rows must not disturb the batch."""
    it = engine(max_num_batched_tokens=17, max_num_seqs=4)
    it.poison()
    specs = [
        PromptSpec((head(7), span(9), span(), dep(*QUESTION)), anchor=1),
        PromptSpec((span(11), span(12), dep(*QUESTION))),
    ]
    for answer, spec in zip(it.run(*map(Ask, specs)), specs, strict=True):
        assert_exact(answer, reference(), spec)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's attention; tests/kernels has the same for the GPU's")
def test_attention_writes_every_row_of_its_output(engine, reference, monkeypatch):
    """Rows of control tokens and padding are zero, whatever lay in the buffer: NaN there would spread in other layers."""
    from minipic_server.cpu.backend import SpanCPUAttention

    it, rows, forward = engine(max_num_batched_tokens=24, max_num_seqs=4), [], SpanCPUAttention.forward

    def watched(self, layer, query, key, value, kv_cache, metadata, output, *args, **kwargs):
        output.fill_(float("nan"))
        result = forward(self, layer, query, key, value, kv_cache, metadata, output, *args, **kwargs)
        if metadata is not None:
            rows.append(output[: metadata.num_actual_tokens].isnan().any())
        return result

    monkeypatch.setattr(SpanCPUAttention, "forward", watched)
    spec = PromptSpec((head(*HEAD), span(*A), span(), dep(*B), dep(*QUESTION)), anchor=4)
    for answer, prompt in zip(it.run(Ask(spec), Ask([*HEAD, *A]), Ask(spec)), (spec, [*HEAD, *A], spec), strict=True):
        assert_exact(answer, reference(), prompt)
    assert rows and not any(rows)


def test_the_token_sampled_behind_spans_alone_is_discarded(engine, reference):
    """Warming leaves spans in the cache and nothing else: the prompt that uses them is exact."""
    it = engine()
    warming = PromptSpec((head(*HEAD[:4]), span(*A), span(*B)), anchor=4)
    first, again = it.ask(warming, 1), it.ask(warming, 1)
    assert [s["status"] for s in first.spans] == ["computed", "computed"]
    assert [s["status"] for s in again.spans] == ["hit", "hit"]
    spec = PromptSpec((head(*HEAD), span(*B), span(*A), dep(*QUESTION)), anchor=4)
    answer = it.ask(spec)
    assert [s["status"] for s in answer.spans] == ["hit", "hit"]
    assert_exact(answer, reference(), spec)


def test_more_than_one_token_behind_spans_alone_is_refused(engine):
    with pytest.raises(ValueError, match="must not end in a span"):
        engine().ask(PromptSpec((head(*HEAD), span(*A)), anchor=4), 2)


def test_prompt_logprobs_are_refused(engine):
    with pytest.raises(ValueError, match="prompt_logprobs"):
        engine().ask(DEPENDENT["head-and-rest"], params={"prompt_logprobs": 1})


@pytest.mark.parametrize("tail", [(CONTROL.pdep,), (CONTROL.pdep, 7, CONTROL.pad)], ids=["pdep-alone", "padding"])
def test_a_prompt_that_generates_ends_in_a_visible_token(engine, tail):
    spec = PromptSpec((head(*HEAD), span(*A)), anchor=4)
    ids = spec.physical() + list(tail)
    with pytest.raises(ValueError, match="end in a visible token"):
        engine().ask(ids, meta=spec.meta())


def test_max_model_len_bounds_the_physical_prompt(engine):
    """Visible tokens that would fit don't help a physical prompt that doesn't."""
    it = engine()
    long = PromptSpec((*(span(5) for _ in range(70)), dep(*QUESTION)))
    assert len(long.bare()) < 100 < 1024 < len(long.physical())
    with pytest.raises(Exception, match=r"maximum context length is 1024.*1130 input tokens"):  # stock's own refusal
        it.ask(long)


def test_generation_stops_before_a_logical_position_beyond_the_model(engine, reference):
    """Gaps between pieces make logical positions overtake physical ones; RoPE ends at max_model_len too."""
    it = engine()
    spec = PromptSpec((head(*HEAD), span(*A, logical=500), dep(*QUESTION, logical=1000)), anchor=4)
    try:
        answer = it.ask(spec, 40)
    except ValueError as refusal:
        assert "max_model_len" in str(refusal)
    else:
        assert len(answer.tokens) <= 1024 - 1009 + 1
        assert_exact(answer, reference(), spec)
    edge = PromptSpec((head(*HEAD), span(*A, logical=500), dep(*QUESTION, logical=1010)), anchor=4)
    assert_exact(it.ask(edge, 5), reference(), edge)


def test_lengths_reported_are_physical_and_consistent(engine):
    spec = DEPENDENT["three-pieces"]
    prompt, params = Ask(spec).engine_input()
    out = engine().llm.generate([prompt], [params], use_tqdm=False)[0]
    assert out.prompt_token_ids == spec.physical(), "arranging must not leak into what the client sees"
