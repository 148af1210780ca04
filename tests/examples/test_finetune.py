"""examples/finetune_block_attention: what it trains under is what the server applies, and it learns."""
# ruff: noqa: E402 - torch and transformers are optional
# pyright: reportMissingImports=false

import json
import random
from argparse import Namespace
from pathlib import Path

import pytest

from minipic_sdk import Document, ModelProfile, Prompt

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from minipic_cli.bench.quality.masked import MaskedModel
from minipic_cli.bench.quality.questions import Passage, manual
from reference.checkpoints import make_checkpoint

EXAMPLE = Path(__file__).parents[2] / "examples/finetune_block_attention"
OPTIONS = {"steps": 12, "seconds": 1e6, "tokens": 3000, "rank": 8, "lr": 1e-2, "warmup": 2, "gold": 0.0, "seed": 0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    profile = ModelProfile.default()
    path = make_checkpoint(tmp_path_factory.mktemp("models"), "llama", vocab_size=49152)
    (path / "tokenizer.json").write_text(profile.tokenizer_spec.data)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": profile.chat_template}))
    return path


@pytest.fixture
def prepare(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import prepare

    return prepare


@pytest.fixture
def train(prepare):
    import train

    return train


@pytest.fixture
def data(prepare, tiny, tmp_path, monkeypatch):
    """Two groups held out and six to train on, with the passages of each; short answers, for speed."""
    monkeypatch.setattr(prepare, "ENDING", 8)
    writer, source, used = prepare.Writer(ModelProfile.from_directory(tiny)), random.Random(0), []
    stock = list({p.heading: p for p in manual()}.values())
    while len(used) < 8:
        passages = source.sample(stock, source.randint(2, 3))
        if writer.add(source, passages, ("continue", "passage")):
            used.append(passages)
    writer.save(tmp_path / "data.npz", 2)
    return tmp_path / "data.npz", used


def test_masks_and_positions_are_those_of_the_layouts(train, tiny, data):
    """For every question of a batch, teacher and student say what the SDK's prompts give under prefix and block."""
    path, used = data
    profile, masked = ModelProfile.from_directory(tiny), MaskedModel(tiny)
    groups = train.Groups(path)
    trainer = train.Trainer(tiny, "cpu", 8, 0.0)
    (batch,) = groups.batches(100_000, 0, held_out=True)
    flat = batch.asked.flatten().nonzero().squeeze(1)
    full, block = (trainer._logprobs(batch, mask, flat) for mask in batch.masks())
    rows = {where: n for n, where in enumerate(flat.tolist())}
    width, seen = batch.ids.shape[1], 0
    by_length = sorted(range(2), key=lambda i: groups.lengths[i])
    for row, group in enumerate(by_length):
        documents = [Document(f"{p.heading}\n{p.text}") for p in used[group]]
        numbers = batch.segments[row]
        for number in sorted(set(numbers[numbers >= train.QUESTION].tolist()) - {127}):
            places = (numbers == number).nonzero().squeeze(1).tolist()
            ids = [int(batch.ids[row, i]) for i in places]
            text = profile.tokenizer.decode(ids)
            question, _, begun = text.partition("<|im_end|>\n<|im_start|>assistant\n")
            asked = [row * width + i for i in places if bool(batch.asked[row, i])]
            gold = ids[-len(asked) :]
            for name, mine in (("prefix", full), ("block", block)):
                prompt = Prompt.compose(documents, question, layout=name, profile=profile)
                given = ids[len(prompt.spans[-1].visible) :] if name == "block" else profile.encode(begun)
                answer = masked.answer(prompt, given[: len(given) - len(gold)], gold)
                assert torch.allclose(mine[[rows[i] for i in asked]].double(), answer.logprobs, atol=1e-3)
            seen += len(asked)
    assert seen == len(flat) > 50
    assert (full - block).abs().max() > 0.05, "the premise: the two masks say different things"


def test_it_learns_and_what_it_wrote_is_what_it_learned(train, tiny, data, tmp_path, capsys):
    path, used = data
    out = tmp_path / "adapter"
    trainer = train.Trainer(tiny, "cpu", 8, 0.0)
    groups = train.Groups(path)
    groups.held_out, groups.validated = 0, groups.count  # so little text teaches nothing about other text
    before = trainer.validate(groups, 3000)[0]
    train.train(trainer, groups, out, Namespace(model=tiny, **OPTIONS))
    assert trainer.validate(groups, 3000)[0] < 0.8 * before
    assert (out / "adapter_model.safetensors").stat().st_size < 2_000_000
    profile = ModelProfile.from_directory(tiny)
    prompt = Prompt.compose([p.text for p in used[0]], "Why?", layout="block", profile=profile)
    said = MaskedModel(tiny, adapter=out).answer(prompt, [], [5, 6]).logprobs
    ids = torch.tensor([[5, 6]])
    with torch.no_grad():
        merged, beside = MaskedModel(tiny, adapter=out).model(ids).logits, trainer.model(ids).logits
    assert torch.allclose(merged, beside, atol=0.05), "but for bfloat16"
    assert not torch.allclose(said, MaskedModel(tiny).answer(prompt, [], [5, 6]).logprobs, atol=0.05)


def test_an_interrupted_run_keeps_what_it_learned(train, tiny, data, tmp_path, monkeypatch):
    trainer, groups = train.Trainer(tiny, "cpu", 8, 0.0), train.Groups(data[0])
    steps = groups.batches

    def interrupted(tokens, seed, *, held_out=False):
        for n, batch in enumerate(steps(tokens, seed, held_out=held_out)):
            if n == 2 and not held_out:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(groups, "batches", interrupted)
    result = train.train(trainer, groups, tmp_path / "adapter", Namespace(model=tiny, **OPTIONS))
    assert result["steps"] == 2
    assert result["after"]["kl"] != result["before"]["kl"]
    assert (tmp_path / "adapter/adapter_config.json").is_file()


def test_no_training_passage_shares_eight_words_with_a_reserved_one(prepare):
    reserved = manual()[0].text
    words = reserved.split()
    fresh = "Entirely other words stand here, and nobody has ever written them in this order before today, it seems."
    copied = Passage("copied", f"{fresh} {' '.join(words[3:11]).upper()}, and so on.")
    short = Passage("short", f"Another beginning altogether {' '.join(words[3:10])}, and so on.")
    kept = prepare.distinct([copied, short, Passage("again", short.text + " More.")], [reserved])
    assert [p.heading for p in kept] == ["short"]


def test_facts_of_the_benchmark_are_left_out(prepare, monkeypatch):
    def listed(heading, *names):
        return Passage.of_facts(heading, tuple((f"How tall is {n}?", f"{len(n)} m") for n in names))

    asked = listed("asked", "A", "BB", "CCC", "DDDD")
    long = listed("long", "A", *(c * 9 for c in "EFGHIJKLMNO"))
    monkeypatch.setattr(prepare, "facts", lambda: [asked, long, listed("few", "P")])
    found = prepare.unused_facts()
    assert [len(p.facts) for p in found] == [5, 5]
    assert not {"How tall is A?"} & {q for p in found for q, _ in p.facts}
