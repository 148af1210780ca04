# pyright: reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalMemberAccess=false, reportGeneralTypeIssues=false, reportOptionalCall=false
# pyright: reportOptionalSubscript=false, reportOperatorIssue=false, reportMissingImports=false, reportUndefinedVariable=false
# (torch modules, Triton kernels and vLLM's optional parts have no types that say what they are)

"""Layouts without an engine: what is computed, what is shared, what is refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipic_sdk import Document, InputError, LayoutError, ModelProfile, ProfileError, Prompt, TemplateError
from minipic_sdk.gate import GATE_FILE, Gate
from minipic_sdk.layout import ControlTokens, parse_layout
from minipic_sdk.layouts import LAYOUTS, Anchored, Block, Epic, PromptCache, layout_named
from minipic_sdk.layouts.base import Arrangement, Part, Piece, Rules, place
from minipic_sdk.layouts.epic import default_k

CONTROL = ControlTokens(509, 510, 511)
DOCS = [
    "The first passage tells of rivers, and of the towns that stand on them. " * 4,
    "Short.",
    "The second passage is about mountains, their snow, and who climbs them. " * 5,
    "A third one: bread, salt, and how both came to the north. " * 6,
]
QUESTION = "What stands on rivers?"


@pytest.fixture(scope="module")
def profile():
    return ModelProfile.default()


def spans(prompt):
    return {s.name: s.key for s in prompt.spans if s.kind == "span"}


def dependent(prompt):
    return sum(len(s.visible) for s in prompt.spans if s.kind == "dependent")


@pytest.mark.parametrize("layout", ["anchored", "block", "epic", "auto", Epic(3), Anchored("head")])
def test_the_model_reads_the_same_tokens(profile, layout):
    prompt = Prompt.compose(DOCS, QUESTION, layout=layout, profile=profile)
    assert prompt.plain_token_ids == Prompt.compose(DOCS, QUESTION, layout="prefix", profile=profile).token_ids
    assert prompt.stats.visible == len(prompt.plain_token_ids)
    assert prompt.stats.physical == len(prompt.token_ids)
    for segment in prompt.spans:
        shown = prompt.plain_token_ids[segment.logical.start : segment.logical.stop]
        assert shown == prompt.token_ids[segment.visible.stop - len(shown) : segment.visible.stop]


@pytest.mark.parametrize("k", [1, 8, 31, 32, 500])
def test_epic_computes_at_most_k_tokens_a_document(profile, k):
    asked = dependent(Prompt.compose([], QUESTION, layout="anchored", profile=profile))
    bare = Prompt.compose(DOCS, QUESTION, layout="anchored", profile=profile)
    prompt = Prompt.compose(DOCS, QUESTION, layout="epic", k=k, profile=profile)
    lengths = [len(profile.encode(Document.of(d).content)) for d in DOCS]
    links = sum(min(k, n) for n in lengths)
    if k == 500:
        assert not prompt.has_spans, "nothing is left to cache: a plain prompt"
    else:
        assert dependent(prompt) == dependent(bare) + links + asked
        assert prompt.stats.hidden == sum(k for n in lengths if n > k)


@pytest.mark.parametrize(("size", "k"), [(16, 31), (32, 31), (64, 63), (48, 47)])
def test_the_default_link_fills_its_blocks(size, k):
    assert default_k(size) == k
    assert (default_k(size) + 1) % size == 0


def test_a_document_right_behind_its_whole_head_needs_no_link(profile):
    prompt = Prompt.compose(DOCS, QUESTION, layout="epic", k=8, anchor="head", profile=profile)
    first = next(s for s, p in zip(prompt.spans, prompt.meta.placements or (), strict=True) if not p.hidden)
    assert prompt.spans[1].logical.start == len(prompt.spans[0].visible), "the head, then the first document"
    assert first.kind == "head"
    assert prompt.stats.hidden == 8 * 2, "of the two long documents that are left"


def test_texts_that_touch_are_one_segment():
    parts = [Part("head", [1], 0), Part("span", [2, 3], 1, 1, 1), Part("dependent", [2], 1), Part("dependent", [4], 3)]
    arrangement = place([*parts, Part("dependent", [5], 4)], Rules(CONTROL, 4, ()), ())
    assert arrangement.token_ids == [1, 511, 511, 511, 509, 2, 3, 511, 510, 2, 511, 511, 510, 4, 5]


@pytest.mark.parametrize("options", [{"layout": "anchored"}, {"layout": "block"}, {"layout": "epic", "k": 8}])
def test_no_document_changes_the_key_of_another(profile, options):
    """Added, reordered, repeated, behind another system prompt: a document keeps its key."""
    names = [Document(d, name=f"d{i}") for i, d in enumerate(DOCS)]
    asked = [names, names[::-1], [names[0], *names], names[2:], [names[2], names[0]]]
    found = [spans(Prompt.compose(d, QUESTION, profile=profile, **options)) for d in asked]
    found.append(spans(Prompt.compose(names, "Why?", system="Be brief.", profile=profile, **options)))
    for other in found:
        assert other.items() <= found[0].items()


def test_layouts_share_keys_where_content_allows(profile):
    names = [Document(d, name=f"d{i}") for i, d in enumerate(DOCS)]

    def keys(**options):
        return set(spans(Prompt.compose(names, QUESTION, profile=profile, **options)).values())

    assert keys(layout="epic", k=8) < keys(layout="anchored"), "all but the short one, which is computed"
    assert keys(layout="epic", base="block") < keys(layout="block")
    assert keys(layout="anchored", anchor=0) == keys(layout="block")
    assert not keys(layout="block") & keys(layout="anchored")
    assert not keys(layout="anchored", anchor=8) & keys(layout="anchored")


def test_dependent_keys_know_their_places(profile):
    def question(*parts):
        prompt = Prompt.compose(DOCS[:1], QUESTION, profile=profile, layout=_Shifted(*parts))
        return prompt.spans[-1].key

    assert len({question(0, 0), question(0, 5), question(3, 0), question(3, 5)}) == 4


class _Shifted:
    """The document and the question moved up; also shows that anyone can write a layout."""

    name = "shifted"

    def __init__(self, document, question):
        self.by = document, question

    def __call__(self, pieces, rules):
        head, document, question = (p.token_ids for p in pieces)
        at = len(head) + self.by[0]
        then = at + len(document) + self.by[1]
        parts = [Part("head", head, 0), Part("span", document, at, 0, 1), Part("dependent", question, then)]
        return place(parts, rules, head[:3])


def test_a_layout_of_ones_own(profile):
    prompt = Prompt.compose(DOCS[:1], QUESTION, profile=profile, layout=_Shifted(100, 7))
    assert prompt.layout == "shifted"
    assert prompt.meta.placements[1].logical == len(prompt.spans[0].visible) + 100


class _Unpadded:
    name = "unpadded"

    def __call__(self, pieces, rules):
        head, document, question = (p.token_ids for p in pieces)
        control = rules.control
        ids = [
            *head,
            *[control.pad] * (-len(head) % rules.block_size),
            control.ssep,
            *document,
            control.pdep,
            *question,
        ]
        return Arrangement(ids, (1,), tuple(head[:3]))


def test_a_layout_of_ones_own_that_forgets_the_padding(profile):
    with pytest.raises(LayoutError, match="PDEP inside a block"):
        Prompt.compose(DOCS[:1], QUESTION, profile=profile, layout=_Unpadded())


@pytest.mark.parametrize("layout", ["anchored", "block", "epic", "prefix"])
def test_options_of_the_template_make_no_control_tokens(profile, layout):
    spelled = profile.tokenizer.decode([profile.control_tokens.ssep])
    dated = replace(profile, chat_template="{{ note }}" + profile.chat_template)
    for note in (spelled, f"x {spelled}"):
        with pytest.raises(TemplateError, match="control token"):
            Prompt.compose(DOCS, QUESTION, profile=dated, layout=layout, template_options={"note": note})


@pytest.mark.parametrize(("anchor", "length"), [(0, 0), (1, 1), (8, 8), ("head", None), (None, 3)])
def test_anchors(profile, anchor, length):
    prompt = Prompt.compose(DOCS, QUESTION, profile=profile, anchor=anchor)
    head = len(prompt.spans[0].visible)
    assert list(prompt.meta.anchor) == prompt.plain_token_ids[: head if length is None else length]


def test_documents_that_are_not_cached_are_text(profile):
    docs = [DOCS[0], Document("Seen in context.", cache=False), {"text": "This too.", "cache": False}, DOCS[2]]
    prompt = Prompt.compose(docs, QUESTION, profile=profile)
    assert [s.kind for s in prompt.spans] == ["head", "span", "dependent", "span", "dependent"]
    epic = Prompt.compose(docs, QUESTION, profile=profile, layout="epic", k=8)
    assert [s.kind for s in epic.spans] == ["head", "span", "span", "dependent", "dependent", "dependent"]
    assert len(epic.spans[4].visible) == len(prompt.spans[2].visible) + 8, "the texts and the link behind them"


@pytest.mark.parametrize(
    ("verdict", "layout"), [("block", "block"), ("anchored", "anchored"), ("epic", "epic"), ("prefix", "prefix")]
)
def test_auto_follows_the_gate_and_says_so(profile, verdict, layout):
    gate = Gate(verdict, items=24, anchor=8, k=15, numbers={verdict: {"kl": 0.0123}})
    prompt = Prompt.compose(DOCS, QUESTION, layout="auto", profile=replace(profile, gate=gate))
    assert prompt.layout == layout
    assert prompt.layout_reason.startswith("auto: ")
    assert "24 questions" in prompt.layout_reason
    assert "KL 0.012" in prompt.layout_reason
    if layout in ("anchored", "epic"):
        assert len(prompt.meta.anchor) == 8


def test_auto_without_a_verdict_is_the_default(profile):
    prompt = Prompt.compose(DOCS, QUESTION, layout="auto", profile=replace(profile, gate=None))
    assert prompt.layout == "anchored"
    assert "minipic doctor" in prompt.layout_reason
    assert prompt.token_ids == Prompt.compose(DOCS, QUESTION, profile=replace(profile, gate=None)).token_ids


def test_the_gate_travels_with_the_profile(profile):
    gate = Gate("epic", items=5, k=8, numbers={"block": {"kl": 1.5}})
    with_gate = replace(profile, gate=gate)
    again = ModelProfile.from_json(json.loads(json.dumps(with_gate.to_json())))
    assert again.gate == gate
    assert with_gate.fingerprint == replace(profile, gate=None).fingerprint, "it changes no token's meaning"


@pytest.mark.parametrize("body", [[], {}, {"verdict": "fine"}, {"verdict": "block", "items": "x"}, {"verdict": 1}])
def test_a_gate_that_is_none(body):
    with pytest.raises(ProfileError):
        Gate.from_json(body)


def test_the_gate_file_beside_a_model(tmp_path, profile, checkpoint_files):
    checkpoint_files(tmp_path)
    (tmp_path / GATE_FILE).write_text(json.dumps(Gate("block", items=3).to_json()))
    assert ModelProfile.from_directory(tmp_path).gate == Gate("block", items=3)


@pytest.fixture
def checkpoint_files(profile):
    """Writes the files that a profile is derived from."""

    def write(folder):
        (folder / "config.json").write_text('{"max_position_embeddings": 4096, "vocab_size": 49152}')
        (folder / "tokenizer.json").write_text(profile.tokenizer_spec.data)
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": profile.chat_template}))

    return write


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": "epik"}, "unknown layout 'epik': one of anchored, auto"),
        ({"layout": "epic", "kk": 1}, "the layout 'epic' has no option 'kk': it takes k, base, anchor"),
        ({"layout": "block", "anchor": 1}, "the layout 'block' has no option 'anchor': it takes none"),
        ({"layout": "epic", "k": 0}, "k=0: a positive number of tokens"),
        ({"layout": "epic", "k": 2.5}, "k=2.5: a positive"),
        ({"layout": "epic", "base": "bare"}, "base='bare': 'anchored' or 'block'"),
        ({"layout": "epic", "base": "block", "anchor": 4}, "whose spans see no anchor"),
        ({"layout": "anchored", "anchor": 10_000}, "tokens stand before the first span"),
        ({"layout": "anchored", "anchor": -1}, "anchor=-1: a number of tokens, or 'head'"),
        ({"layout": "anchored", "anchor": "tail"}, "anchor='tail': a number of tokens, or 'head'"),
        ({"layout": "prompt-cache"}, "takes modules of a schema"),
        ({"layout": Epic(), "k": 3}, "the option 'k' beside a layout object"),
        ({"layout": 7}, "7 is no layout"),
        ({"sytem": "typo"}, "no option 'sytem'"),
    ],
)
def test_wrong_options(profile, options, says):
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        Prompt.compose(DOCS, QUESTION, profile=profile, **options)


def test_positions_beyond_the_model_are_refused(profile):
    with pytest.raises(InputError, match="positions, gaps counted"):
        Prompt.compose(DOCS[:1], QUESTION, profile=profile, layout=_Shifted(9000, 0))


@pytest.mark.parametrize("shift", [(-5, 0), (0, -9), (-100, 0)])
def test_overlapping_and_negative_places_are_layout_errors(profile, shift):
    with pytest.raises(LayoutError):
        Prompt.compose(DOCS[:1], QUESTION, profile=profile, layout=_Shifted(*shift))


def test_every_layout_has_a_name_and_is_listed(profile):
    assert set(LAYOUTS) == set(profile.layouts)
    for name in LAYOUTS:
        assert layout_named(name).name == name
    assert {type(layout_named(n)) for n in ("block", "prompt-cache")} == {Block, PromptCache}


TEXTS = st.lists(st.integers(0, 500), max_size=50)
PIECES = st.lists(st.tuples(st.sampled_from(["text", "span"]), TEXTS), max_size=7)


@settings(max_examples=300)
@given(PIECES, st.integers(1, 40), st.sampled_from(["anchored", "block"]), st.sampled_from([2, 16, 48]))
def test_any_pieces_give_a_valid_layout_that_reads_the_same(pieces, k, base, size):
    pieces = [*(Piece(kind, ids) for kind, ids in pieces), Piece("text", [7, 8])]
    rules = Rules(CONTROL, size, (pieces[0].token_ids if pieces[0].kind == "text" else [])[:4])
    wanted = [t for p in pieces for t in p.token_ids]
    for layout in (Anchored(), Block(), Epic(k, base), Epic(k, base, None)):
        made = layout(pieces, rules)
        parsed = parse_layout(
            made.token_ids, control=CONTROL, block_size=size, anchor=made.anchor, placements=made.placements
        )
        segments = sorted(parsed.segments, key=lambda s: s.logical_shown)
        assert [t for s in segments for t in made.token_ids[s.shown_start : s.visible_stop]] == wanted
        assert sum(s.kind == "span" for s in parsed.segments) == len(made.spans)
        for s, index in zip((s for s in parsed.segments if s.kind == "span"), made.spans, strict=True):
            assert made.token_ids[s.visible_start : s.visible_stop] == pieces[index].token_ids
