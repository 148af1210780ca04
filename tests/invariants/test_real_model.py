"""The bundled model, SmolLM2-135M-Instruct: real weights and real text against transformers, as users serve it."""

import pytest

from invariants.checks import assert_exact
from invariants.engines import Ask
from reference.hf import HFReference
from reference.prompts import Control, PromptSpec, dep, head, span

OPENING = "<|im_start|>system\nYou answer from the passages given.<|im_end|>\n<|im_start|>user\n"
PASSAGES = [
    "The lighthouse on Skerry Rock was finished in 1811 by Ada Thornwood, who lived there for nine winters.\n",
    "Baker's yeast rises best between 24 and 29 degrees; above 60 degrees it dies and the bread stays flat.\n",
    "Trains to Lowmoor leave from platform four at ten past every hour, except on Sundays.\n",
]
QUESTION = "Who finished the lighthouse on Skerry Rock?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def smol():
    """(model directory, tokenizer, transformers reference)"""
    from tokenizers import Tokenizer

    from minipic_cli.models import default_model_dir

    path = default_model_dir()
    return path, Tokenizer.from_file(str(path / "tokenizer.json")), HFReference(path)


def test_the_reference_knows_this_model(smol):
    """The converted weights are a language model: it continues a well-known sentence."""
    _, tokenizer, reference = smol
    spec = PromptSpec((head(*tokenizer.encode("The capital of France is").ids),))
    assert tokenizer.decode(reference.greedy(spec, 1)) == " Paris"


@pytest.mark.parametrize("anchor", ["opening", "whole-head", "empty"])
def test_cold_warm_and_in_another_order(engine, smol, anchor):
    path, tokenizer, reference = smol
    it = engine(model=path, control_tokens=None, num_gpu_blocks_override=200, max_num_batched_tokens=512)
    control = Control(*it.scheduler.span_config.control)
    opening, question, *documents = (tuple(tokenizer.encode(t).ids) for t in (OPENING, QUESTION, *PASSAGES))
    length = {"opening": 3, "whole-head": len(opening), "empty": 0}[anchor]

    def prompt(order):
        spans = (span(*documents[i]) for i in order)
        return PromptSpec((head(*opening), *spans, dep(*question)), anchor=length, control=control)

    first, other = prompt([0, 1, 2]), prompt([2, 0, 1])
    assert_exact(it.ask(first, 8), reference, first)
    again, moved = it.run(Ask(first, 8), Ask(other, 8))
    assert_exact(again, reference, first)
    assert_exact(moved, reference, other)
    assert [s["status"] for s in moved.spans] == ["hit"] * 3
    if anchor != "empty":
        assert "Ada" in tokenizer.decode(it.ask(other, 16).tokens)
