"""`minipic bench quality`: its questions, its scores, its model against the references, and a small run."""
# ruff: noqa: E402 - torch and transformers are optional

import json
from dataclasses import replace

import pytest

from minipic_sdk import Document, ModelProfile, Prompt

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import save_file

from layouts.methods import D, T, epic, full, spans
from minipic_cli.bench import quality
from minipic_cli.bench.quality.gate import judge
from minipic_cli.bench.quality.masked import Ask, MaskedModel
from minipic_cli.bench.quality.measure import Models, ask, summarise
from minipic_cli.bench.quality.methods import ADAPTED, FULL, METHODS, NONE, compose, computed_tokens
from minipic_cli.bench.quality.questions import DOCUMENTS, build, draw, items_of
from minipic_cli.bench.quality.report import COLUMNS, markdown, table
from minipic_cli.bench.quality.scores import Score, bootstrap, divergence, exact_match, token_f1
from minipic_cli.doctor import Check
from reference.checkpoints import make_checkpoint
from reference.hf import HFReference

TEXTS = [
    "Rivers carry sand to the sea. Where they are slow they drop it, and islands grow that no map shows. Fishermen know "
    "them by heart, and pass on to their children where one can land.",
    "Bread is older than writing. The first loaves were flat, baked on stones, and eaten while still hot. It took a long "
    "time until somebody found out what sour dough does when it is left alone.",
]


@pytest.fixture(scope="module")
def profile():
    return ModelProfile.default()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, profile):
    """A random model with the bundled vocabulary, and all files that a profile is derived from."""
    path = make_checkpoint(tmp_path_factory.mktemp("models"), "llama", vocab_size=49152)
    (path / "tokenizer.json").write_text(profile.tokenizer_spec.data)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": profile.chat_template}))
    return path


def test_questions_are_the_same_for_the_same_seed_and_their_answers_are_in_the_documents():
    items = build(24, seed=3)
    assert items == build(30, seed=3)[:24] or [i.question for i in items] == [i.question for i in build(30, 3)[:24]]
    assert [i.question for i in items] != [i.question for i in build(24, seed=4)]
    for item in items:
        assert len(item.documents) == DOCUMENTS
        text = " ".join(d.content for d in item.documents)
        assert item.gold.strip() in text
        if item.kind in ("continue", "passage"):
            assert item.begun.split()[-1] in text


def test_questions_can_be_asked_where_their_texts_are_not(monkeypatch):
    drawn = json.loads(json.dumps(draw(20, seed=3)))
    expected = [(i.kind, i.question, i.begun, i.gold, [d.content for d in i.documents]) for i in build(20, seed=3)]
    monkeypatch.setattr("minipic_cli.bench.quality.questions.manual", lambda: pytest.fail("the texts are in the file"))
    there = items_of(drawn)
    assert [(i.kind, i.question, i.begun, i.gold, [d.content for d in i.documents]) for i in there] == expected


def test_scores():
    assert exact_match("The Power, operator. And so on", "power operator") == 1
    assert exact_match("power", "power operator") == 0
    assert token_f1("power station far away", "power operator") == 0.5
    assert token_f1("nothing", "power operator") == 0
    mean = bootstrap([0.0, 1.0] * 50)
    assert mean == bootstrap([0.0, 1.0] * 50)
    assert mean.value == 0.5
    assert 0.38 < mean.low < 0.45 < 0.55 < mean.high < 0.62
    one, other = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    assert divergence(one, one) == 0
    assert divergence(one, other) == pytest.approx(0.9 * 0.5878 - 0.1 * 1.6094, abs=1e-3)


@pytest.mark.parametrize(
    ("kl", "verdict"),
    [
        ({"block": 0.05, "anchored": 0.01, "epic": 0.001}, "block"),
        ({"block": 0.5, "anchored": 0.05, "epic": 0.001}, "anchored"),
        ({"block": 0.5, "anchored": 0.3, "epic": 0.05}, "epic"),
        ({"block": 0.5, "anchored": 0.3, "epic": 0.2}, "prefix"),
    ],
)
def test_the_gate_takes_the_cheapest_safe_layout(kl, verdict):
    row = Score(0, 0, -1, 0, 1, 10)
    answers = [{FULL: row, NONE: row._replace(kl=1.0), **{n: row._replace(kl=v) for n, v in kl.items()}}] * 12
    gate = judge(answers)
    assert gate.verdict == verdict
    assert gate.items == 12
    assert gate.numbers["block"]["share"] == pytest.approx(kl["block"])


def test_one_odd_answer_among_few_is_not_called_safe():
    row = Score(0, 0, -1, 0, 1, 10)
    kl = [0.0] * 9 + [0.99]
    answers = [
        {FULL: row, NONE: row._replace(kl=1.0), **dict.fromkeys(("block", "anchored", "epic"), row._replace(kl=v))}
        for v in kl
    ]
    assert judge(answers).verdict == "prefix", "10 % on average, but who knows"


def pieces(profile, documents, question):
    ids = Prompt.compose(documents, question, layout="prefix", profile=profile).token_ids
    mine = [profile.encode(Document.of(d).content) for d in documents]
    middle = [t for d in mine for t in d]
    at = next(i for i in range(len(ids)) if ids[i : i + len(middle)] == middle)
    return [T(tuple(ids[:at])), *(D(tuple(d)) for d in mine), T(tuple(ids[at + len(middle) :]))]


def test_the_masked_model_is_the_references(tiny, profile):
    """Its logprobs and greedy tokens under every layout, for all prompts of all lengths read as one batch."""
    model, reference = MaskedModel(tiny), HFReference(tiny)
    asked, expected, states, agreed = [], [], [], []
    for texts, question, wanted in (
        (TEXTS, "What is older than writing?", [100, 200, 300]),
        ([TEXTS[1], *TEXTS], "What do rivers carry to the sea, and who knows the islands by heart?", [7, 8]),
        ([TEXTS[0][:70]], "What?", [40]),
    ):
        given = pieces(profile, texts, question)
        for layout, spec in {
            "prefix": full(given),
            "block": spans(given, 0),
            "anchored": spans(given, 3),
            "epic": epic(given, 3, 31),
        }.items():
            prompt = Prompt.compose(texts, question, layout=layout, profile=profile)
            rows = reference.logprobs(spec, wanted[:-1])
            greedy = reference.greedy(spec, 6)
            asked += [Ask(prompt, [], wanted), Ask(prompt, wanted[:1], wanted[1:] or wanted), Ask(prompt, [], greedy)]
            asked.append(Ask(prompt, [], [*greedy[:2], greedy[2] + 1]))
            expected += [rows, rows[1:], None, greedy[2:]]
    for ask_, answer, wanted in zip(asked, model.answers(asked), expected, strict=True):
        if wanted is None:
            assert answer[1:] == (6, None)
        elif isinstance(wanted, list):
            assert answer.agreed == 2
            states.append(answer.state)
            agreed.append(wanted)
        elif len(wanted):
            assert torch.allclose(answer.logprobs, wanted, atol=1e-3)
            alone = model.answer(*ask_)
            assert torch.allclose(alone.logprobs, wanted, atol=1e-3)
            assert alone.agreed == answer.agreed
    limits = [4, 1, 2, 3] * 3
    for said, rest, limit in zip(model.generate(states, limits), agreed, limits, strict=True):
        assert said == rest[:limit]
    assert model.generate(states[:1], [4], stop=[agreed[0][2]])[0] == agreed[0][: agreed[0].index(agreed[0][2])]


def test_what_is_kept_is_bounded_and_changes_nothing(tiny, profile, monkeypatch):
    asked = [
        Ask(Prompt.compose(t, "Why?", layout=layout, profile=profile), [], [5, 6])
        for t in (TEXTS, TEXTS[:1], TEXTS[::-1])
        for layout in ("anchored", "block")
    ]
    expected = [a.logprobs for a in MaskedModel(tiny).answers(asked)]
    monkeypatch.setattr("minipic_cli.bench.quality.masked.REMEMBERED", 60)
    model = MaskedModel(tiny)
    for _ in range(2):
        for answer, wanted in zip(model.answers(asked), expected, strict=True):
            assert torch.allclose(answer.logprobs, wanted, atol=1e-5)
        assert sum(kv.length for kv in model._kept.values()) == model._kept_tokens <= 60


def test_what_each_method_computes(profile):
    item = build(1)[0]
    tokens = {name: computed_tokens(compose(m, item, profile), 24) for name, m in METHODS.items()}
    assert tokens["block"] == tokens["anchored 3"] == tokens["prompt cache, block"]
    assert tokens["anchored 3"] < tokens["epic 8, anchored"] < tokens["epic 31, anchored"] < tokens[FULL]
    assert tokens["epic 31, block"] - tokens["block"] == DOCUMENTS * 32


def test_one_question_under_every_method(tiny, profile):
    items = build(3)
    model = Models(MaskedModel(tiny))
    together = ask(model, profile, items, METHODS)
    item, answers = items[1], together[1]
    for name, score in ask(model, profile, [item], METHODS)[0].items():
        assert score == pytest.approx(answers[name], abs=1e-4), "whatever is asked with it"
    assert list(answers) == list(METHODS)
    assert answers[FULL].kl == 0
    assert answers[FULL].same == 1
    assert answers["block"].kl > 0
    rows = summarise([item, item], [answers, answers])
    assert rows[0]["logprob_from_full"] == [0, 0, 0]


def test_a_small_run_writes_its_result_and_goes_on_after_an_interruption(tiny, tmp_path):
    out, kept = tmp_path / "results" / "quality.json", tmp_path / "kept.jsonl"
    told: list[str] = []
    first = quality.run(model=tiny, items=2, quick=True, resume=kept)
    result = quality.run(model=tiny, items=3, quick=True, out=out, resume=kept, note=told.append)
    assert [line for line in told if line.startswith("question")] == ["question 3 of 3 (passage)"]
    assert first["rows"][0]["method"] == FULL
    assert {k: v for k, v in json.loads(out.read_text()).items() if k != "plot"} == {
        k: v for k, v in result.items() if k != "plot"
    }
    assert len(table(result)[0]) == len(COLUMNS)
    assert markdown(result).count("\n") == 1 + len(result["rows"])


def test_a_gate_for_a_random_model(tiny):
    gate = quality.measure_gate(tiny, items=2)
    assert gate.verdict in ("block", "anchored", "epic", "prefix")
    assert gate.items == 2
    auto = Prompt.compose(TEXTS, "Why?", layout="auto", profile=replace(ModelProfile.default(), gate=gate))
    assert auto.layout == gate.verdict


def test_doctor_writes_the_verdict_that_auto_follows(tiny, tmp_path, run, monkeypatch):
    """From the command to the prompt; what engines say about the model is left out (check_model)."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny.iterdir():
        (model / file.name).symlink_to(file)
    monkeypatch.setattr("minipic_cli.doctor.environment", lambda *_: [Check("vLLM", True, "there")])
    monkeypatch.setattr("minipic_cli.model_check.check_model", lambda _: [])
    before = Prompt.compose(TEXTS, "Why?", layout="auto", profile=ModelProfile.from_directory(model))
    assert "not measured" in before.layout_reason
    done = run("doctor", model, "--gate", "2", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)["checks"][-1]
    profile = ModelProfile.from_directory(model)
    assert profile.gate is not None
    assert profile.gate.items == 2
    assert profile.gate.describe() in told["found"]
    # A server hands the profile on, and a client follows it.
    received = ModelProfile.from_json(json.loads(json.dumps(profile.to_json())))
    after = Prompt.compose(TEXTS, "Why?", layout="auto", profile=received)
    assert after.layout == profile.gate.verdict
    assert "2 questions" in after.layout_reason


def test_an_adapter_is_asked_too(tiny, tmp_path, run):
    """A zero adapter changes nothing, one that isn't does; both from questions in a file."""
    questions = tmp_path / "questions.json"
    assert run("bench", "questions", questions, "--items", "5", "--seed", "7").code == 0
    (tmp_path / "adapter").mkdir()
    rows = {}
    for strength in (0.0, 0.5):
        torch.manual_seed(1)
        name = "base_model.model.model.layers.0.self_attn.v_proj"
        a, b = torch.randn(4, 128) / 128**0.5, torch.randn(64, 4) * strength
        save_file(
            {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}, tmp_path / "adapter/adapter_model.safetensors"
        )
        (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
        out = tmp_path / f"{strength}.json"
        given = ("--items", "4", "--questions", questions, "--adapter", tmp_path / "adapter", "--out", out)
        done = run("bench", "quality", tiny, "--quick", *given)
        assert done.code == 0, done.err
        result = json.loads(out.read_text())
        assert (result["seed"], result["items"], result["adapter"]) == (7, 4, "adapter")
        rows[strength] = {row["method"]: row for row in result["rows"]}
    for name in ADAPTED:
        bare = name.removesuffix(" + adapter")
        assert rows[0.0][name]["logprob"] == pytest.approx(rows[0.0][bare]["logprob"], abs=2e-4)
        assert rows[0.5][name]["logprob"] != pytest.approx(rows[0.0][bare]["logprob"], abs=2e-3)
        assert rows[0.5][bare]["logprob"] == rows[0.0][bare]["logprob"]
    assert run("bench", "quality", tiny, "--adapter", tmp_path).code == 2
    (tmp_path / "bad.json").write_text("{}")
    assert run("bench", "quality", tiny, "--questions", tmp_path / "bad.json").code == 1
