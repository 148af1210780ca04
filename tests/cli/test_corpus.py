"""Chunking, and reading HTML and PDF."""

import random

import pytest

from cli.pdf_files import pdf
from minipic_cli.corpus import chunking
from minipic_cli.corpus.chunking import Chunker
from minipic_cli.corpus.html import plain
from minipic_cli.corpus.manifest import Manifest
from minipic_cli.corpus.reading import ReadError, texts
from minipic_cli.corpus.sources import Source
from minipic_sdk import ModelProfile
from minipic_sdk.testing import fake_profile


def _words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(count))


def _book(seed: int, paragraphs: int) -> list[str]:
    rng = random.Random(seed)
    out: list[str] = []
    for i in range(paragraphs):
        if i % 9 == 0:
            out.append(f"{'#' * rng.randint(1, 3)} {_words(rng, 3)}")
        out.append(". ".join(_words(rng, rng.randint(5, 20)).capitalize() for _ in range(rng.randint(1, 6))) + ".")
    return out


def _cut(text: str, limit: int = 256, piece: int = 1 << 16) -> list[str]:
    pieces = (text[i : i + piece] for i in range(0, len(text), piece))
    return [c.text for c in Chunker(ModelProfile.default().encode_batch, limit).chunks(pieces)]


def test_chunks_fit_and_lose_nothing() -> None:
    text = "\n\n".join(_book(1, 300))
    profile = ModelProfile.default()
    made = list(Chunker(profile.encode_batch, 256).chunks([text]))
    sizes = [len(c.ids) for c in made]
    assert max(sizes) <= 256
    assert sum(sizes) / len(sizes) > 100
    assert "".join("".join(c.text for c in made).split()) == "".join(text.split())


def test_a_small_text_stays_whole() -> None:
    text = "# One\n\ntext\n\n# Two\n\ntext"
    assert _cut(text) == [text]


def test_it_does_not_matter_how_the_text_arrives() -> None:
    text = "\n\n".join(_book(2, 200))
    assert _cut(text, piece=1) == _cut(text) == _cut(text, piece=777)


def test_sections_are_kept_together_where_they_fit() -> None:
    sections = [f"# Section {i}\n\n" + "\n\n".join(_book(i, 3)[1:]) for i in range(8)]
    made = _cut("\n\n".join(sections), limit=1500)
    assert all(c.startswith("# Section") for c in made)


@pytest.mark.parametrize("window", [chunking.WINDOW, 4000], ids=["one window", "many windows"])
def test_an_edit_changes_only_the_chunks_it_touches(monkeypatch, window: int) -> None:
    monkeypatch.setattr(chunking, "WINDOW", window)
    rng = random.Random(3)
    changed: list[int] = []
    for seed in range(30):
        book = _book(seed, 150)
        before = set(_cut("\n\n".join(book)))
        at = rng.randrange(len(book))
        book[at] = rng.choice(
            [book[at] + " One more sentence here.", "Quite another text.", f"{book[at]}\n\nA new one."]
        )
        after = _cut("\n\n".join(book))
        changed.append(sum(chunk not in before for chunk in after))
    # One, or two when the chunk has grown too long; now and then a boundary is moved from one side to the other.
    assert sorted(changed)[len(changed) // 2] == 1
    assert sum(changed) / len(changed) < 3


def test_what_has_no_structure_is_cut_anyway() -> None:
    for text in (
        "word " * 4000,
        "x" * 9000,
        "字" * 4000,
        "一句话。" * 2000,
        "line of code()\n" * 800,
        " " * 9000 + "end",
    ):
        made = list(Chunker(fake_profile().encode_batch, 500).chunks([text]))
        assert all(0 < len(c.ids) <= 500 for c in made)
        assert "".join("".join(c.text for c in made).split()) == "".join(text.split())


def test_code_fences_are_not_headings() -> None:
    cuts = chunking.Cuts("# Real\n\ntext\n\n```\n# comment\n\ncode\n```\n\n## Also real\n\nUnder\n-----\n\ntext")
    assert [level for _, level in cuts._headings] == [1, 2, 2]


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        ("A\n~~~\n\ntext\n\nOther part\n~~~~~~~~~~\n\nmore", ["A", "Other part"]),
        ("A\n===\n\n~~~\n# code\n}\n~~~\n\n# B", ["A", "# B"]),
        ("````\n```\n# code\n```\n# code\n````\n# B", ["# B"]),
        ("Run\n```ls``` now.\n\n# B", ["# B"]),
        ("# A\n\n``` sh\n# code\n``` sh\n# code", ["# A"]),
        ("====\nA\n====\n\n - x\n---\n", ["A"]),
        ("A\n-- \n---\n--\n#\n#B\n", ["-- "]),
    ],
    ids=["rst", "tildes", "longer fence", "inline code", "never closed", "overlined", "nearly"],
)
def test_what_is_a_heading(text: str, headings: list[str]) -> None:
    cuts = chunking.Cuts(text)
    assert [text[at:].split("\n")[0] for at, _ in cuts._headings] == headings


def test_html_becomes_readable_text() -> None:
    page = """<!doctype html><html><head><title>T</title><style>p{}</style></head><body><nav>menu</nav>
    <h1>Title &amp; more</h1><p>One <b>bold</b>
    word.<br>Next line.</p><ul><li>first<li>second</ul><script>var x = "<p>no</p>"</script>
    <pre>def f():
        return 1</pre><table><tr><th>a<th>b<tr><td>1<td>2</table></body></html>"""
    assert "".join(plain([page])).strip() == (
        "# Title & more\n\nOne bold word.\nNext line.\n\n- first\n- second\n\n"
        "```\ndef f():\n        return 1\n```\n\na | b\n1 | 2"
    )


def test_html_in_pieces_and_broken_html() -> None:
    page = "<p>one &amp; two</p><div>three <i>four</div></b><p>five"
    whole = "".join(plain([page]))
    assert "".join(plain(list(page))) == whole
    assert whole.strip() == "one & two\n\nthree four\n\nfive"


def _read(source: Source) -> list[str]:
    return [piece for text in texts(source) for piece in text.pieces]


def test_pdf(tmp_path) -> None:
    pytest.importorskip("pypdf")
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(["Hello from a page."]))
    (text,) = ["".join(t.pieces) for t in texts(Source(path, "a", "a.pdf", "pdf", True))]
    assert text.strip() == "Hello from a page."


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"", "not a readable PDF"), (b"%PDF-1.4 rubbish", "not a readable PDF"), (pdf([]), "has no text")],
    ids=["empty", "rubbish", "pictures"],
)
def test_a_pdf_that_can_t_be_used(tmp_path, data: bytes, says: str) -> None:
    pytest.importorskip("pypdf")
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    with pytest.raises(ReadError, match=says):
        _read(Source(path, "a", "a.pdf", "pdf", True))


def test_a_large_file_is_read_in_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("minipic_cli.corpus.reading.WHOLE", 100_000)
    path = tmp_path / "a.txt"
    text = "Ein Maß für alle. " * 20_000
    path.write_text(text)
    (got,) = [list(t.pieces) for t in texts(Source(path, "a", "a", "text", True))]
    assert "".join(got) == text
    assert len(got) > 1
    path.write_bytes(text.encode() + b"\xff")
    with pytest.raises(ReadError, match="not valid utf-8"):
        _read(Source(path, "a", "a", "text", True))


def test_texts_prepared_together_have_the_chunks_they_have_alone() -> None:
    texts = [("One.", None), ("One.", "Title"), ("Two. " * 900, "Long"), ("Three.", None)]
    encode = ModelProfile.default().encode_batch
    alone = [list(Chunker(encode, 128).chunks([text], title)) for text, title in texts]
    calls: list[int] = []
    together = Chunker(lambda given: calls.append(len(given)) or encode(given), 128)
    together.prepare(texts)
    assert calls == [3]  # the long one is cut first
    assert [list(together.chunks([text], title)) for text, title in texts] == alone
    assert len(alone[2]) > 1
    assert calls.count(1) < len(alone[2])


def test_ids_of_any_size_come_back_from_the_manifest() -> None:
    small, large = [0, 1, 65535], [0, 65536, 200_000]
    with Manifest(None) as manifest:
        target = manifest.target("m", "f", None)
        first = [(0, b"k1", small, 1)]
        document = manifest.begin(target, "/d", "/d", "d", first, None, public=False, chunk_tokens=64)
        manifest.add(document, [(1, b"k2", large, 2)], b"digest")
        assert list(manifest.spans(document)) == [(0, b"k1", small, 1), (1, b"k2", large, 2)]
        known = manifest.document(target, "/d", "/d")
        assert known is not None
        assert (known.chunks, known.tokens, known.blocks, known.content) == (2, 6, 3, b"digest")
        assert manifest.known(target, "/d", ["/d", "/e"]) == {"/d"}
        again = manifest.begin(target, "/d", "/d", "d", first, b"new", public=True, chunk_tokens=64)
        assert again == document
        assert list(manifest.spans(document)) == first
