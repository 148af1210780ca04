"""Cutting long texts where their structure allows: headings first, then paragraphs, lines, sentences, words.

Which boundary is taken depends on the text around it, never on what was cut before: a text is halved again and again at
the best boundary near its middle, a heading if there is one, otherwise the paragraph whose opening hashes highest. So
an edit moves the boundaries of the chunks it touches and leaves the others, and with them their cached KV, as they are.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple
from zlib import crc32

from minipic_sdk.documents import content_of

DEFAULT_TOKENS: Final = 2048
MIN_TOKENS: Final = 64
WINDOW: Final = 1 << 20  # characters looked at together; a longer text is cut into such windows first
_DENSE: Final = 4.5  # characters a token, about: a longer piece is halved before it is tokenised at all
_WHOLE: Final = 8.0  # characters a token, at most worth a try for a text that may stay whole
_TOGETHER: Final = 16  # pieces tokenised at once
_CONTEXT: Final = 96  # characters behind a boundary that decide its rank among equals
# Lines, each with the newline before it: a pattern that begins with a letter of its own is searched many times faster
# than one that begins with ^.
_HEADING: Final = re.compile(r"\n(#{1,6})[ \t]+\S")
_UNDERLINE: Final = re.compile(r"\n(={3,}|-{3,}|~{3,})[ \t]*(?=\n|\Z)")
_FENCE: Final = re.compile(r"\n[ \t]*(`{3,}|~{3,})([^\n]*)")
_UNDER: Final = {"=": 1, "-": 2, "~": 3}
_BETWEEN: Final = (
    re.compile(r"\n[ \t]*\n\s*"),  # paragraphs
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])"),  # sentences
    re.compile(r"\s+"),
)

_Titled = tuple[str, str | None]
_Ready = dict[_Titled, list[int]]  # ids of texts that were tokenised together


class Chunk(NamedTuple):
    """A piece that becomes one span."""

    text: str
    ids: list[int]  # of its span


class Chunker:
    """Cuts texts for one tokenizer."""

    def __init__(self, encode: Callable[[Sequence[str]], list[list[int]]], limit: int) -> None:
        """Make one.

        Args:
            encode: ids of each of some spans' texts.
            limit: tokens of a chunk, at most; 0: never cut.
        """
        self._encode, self._limit = encode, limit
        self._prepared: _Ready = {}

    def prepare(self, texts: Iterable[_Titled]) -> None:
        """Tokenise short texts (each with its title) together: faster than one by one when their chunks are asked for.

        Only those of the last call are remembered.
        """
        self._prepared = self._together([t for t in texts if not self._limit or self._may_fit(t[0])])

    def chunks(self, pieces: Iterable[str], title: str | None = None) -> Iterator[Chunk]:
        """The chunks of one text, in order; none of them blank."""
        for number, window in enumerate(_windows(pieces) if self._limit else iter(("".join(pieces),))):
            yield from self._window(window, title if not number else None)

    def _window(self, text: str, title: str | None) -> Iterator[Chunk]:
        if not self._limit or self._may_fit(text):
            chunk = self._chunk(text, title, self._prepared)
            if not self._limit or len(chunk.ids) <= self._limit:
                if text.strip():
                    yield chunk
                return
        cuts = Cuts(text)
        short = cuts.halved(0, len(text), lambda start, stop: stop - start <= _DENSE * self._limit)
        ready: _Ready = {}

        @lru_cache(maxsize=1)  # what fits is asked for again at once
        def chunk_of(start: int, stop: int) -> Chunk:
            return self._chunk(text[start:stop], None, ready)

        while some := list(islice(short, _TOGETHER)):
            ready.clear()
            ready |= self._together([(text[start:stop], None) for start, stop in some])
            for start, stop in some:
                for at, end in cuts.halved(start, stop, lambda a, b: len(chunk_of(a, b).ids) <= self._limit):
                    chunk = chunk_of(at, end) if at or title is None else self._chunk(text[at:end], title, {})
                    if chunk.text:
                        yield chunk

    def _may_fit(self, text: str) -> bool:
        return len(text) <= _WHOLE * self._limit

    def _together(self, texts: Sequence[_Titled]) -> _Ready:
        contents = [content_of(text, title) for text, title in texts]
        return dict(zip(texts, self._encode(contents), strict=True)) if contents else {}

    def _chunk(self, text: str, title: str | None, ready: _Ready) -> Chunk:
        ids = ready.get((text, title))
        return Chunk(text.strip(), self._together([(text, title)])[text, title] if ids is None else ids)


class Cuts:
    """Where a text may be cut."""

    def __init__(self, text: str) -> None:
        self.text = text
        lines = "\n" + text  # what is found at n in it is the line that begins at n in the text
        fences = list(_fences(lines))

        def fenced(at: int) -> bool:
            return bisect_right(fences, at - 1) % 2 == 1  # an odd number of fences stands before it

        levels = {m.start(): len(m[1]) for m in _HEADING.finditer(lines)}
        for match in _UNDERLINE.finditer(lines):
            above = lines.rfind("\n", 0, match.start())
            if above >= 0 and not lines[above + 1].isspace():
                levels.setdefault(above, _UNDER[match[1][0]])
        self._headings = sorted((at, level) for at, level in levels.items() if not fenced(at))
        ends = [m.end() for m in _BETWEEN[0].finditer(text)]
        self._paragraphs = [at for at in ends if not fenced(at)] if fences else ends
        self._ranks: dict[int, tuple[int, int]] = {}

    def halved(self, start: int, stop: int, fits: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
        """[start, stop) in ranges that fit, or can't be cut any more, in order."""
        stack = [(start, stop)]
        while stack:
            start, stop = stack.pop()
            at = None if fits(start, stop) else self.best(start, stop)
            if at is None:
                yield start, stop
            else:
                stack += ((at, stop), (start, at))

    def best(self, start: int, stop: int) -> int | None:
        """The boundary to cut [start, stop) at; ``None`` if it can't be cut."""
        if stop - start < 2:
            return None
        low, high = self._share(start, stop, 0.1)
        headings = self._headings[bisect_left(self._headings, (low, 0)) : bisect_left(self._headings, (high, 0))]
        if headings:
            top = min(level for _, level in headings)
            # Among equals the hash decides, in the middle if one is there.
            found = [at for at, level in headings if level == top]
            low, high = self._share(start, stop, 0.25)
            return max([at for at in found if low <= at < high] or found, key=self._rank)
        low, high = self._share(start, stop, 0.25)
        found = self._paragraphs[bisect_left(self._paragraphs, low) : bisect_left(self._paragraphs, high)]
        for pattern in _BETWEEN[1:]:
            if found:
                break
            found = [m.end() for m in pattern.finditer(self.text, low, high) if start < m.end() < stop]
        if found:
            return max(found, key=self._rank)
        return (start + stop) // 2

    def _share(self, start: int, stop: int, share: float) -> tuple[int, int]:
        """[start, stop) without ``share`` of it at both ends."""
        margin = max(1, int((stop - start) * share))
        return start + margin, max(stop - margin, start + margin + 1)

    def _rank(self, at: int) -> tuple[int, int]:
        rank = self._ranks.get(at)  # asked for at every level of halving
        if rank is None:
            context = self.text[at : at + _CONTEXT].encode("utf-8", "surrogatepass")
            rank = self._ranks[at] = crc32(context), -at
        return rank


def _fences(lines: str) -> Iterator[int]:
    """Where code blocks begin and end, in turn."""
    opened = ""
    for match in _FENCE.finditer(lines):
        run, info = match[1], match[2].strip()
        if opened:
            if run.startswith(opened) and not info:
                opened = ""
                yield match.start()
        elif not _underlines(lines, match) and "`" not in info:  # with one it is code inside a line
            opened = run
            yield match.start()


def _underlines(lines: str, match: re.Match[str]) -> bool:
    """Whether a run of tildes is not a fence but makes a heading of the line above, as in reStructuredText."""
    above = lines[lines.rfind("\n", 0, match.start()) + 1 : match.start()].rstrip()
    return match[1][0] == "~" and not match[2].strip() and 0 < len(above) <= len(match[1])


def _windows(pieces: Iterable[str]) -> Iterator[str]:
    """A text of any length in windows of half to one and a half times the size, cut at its own best boundaries."""
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size < 2 * WINDOW:
            continue
        text = "".join(held)
        while len(text) >= 2 * WINDOW:
            around = Cuts(text[WINDOW // 2 : WINDOW + WINDOW // 2])
            at = WINDOW // 2 + (around.best(0, len(around.text)) or 0)
            yield text[:at]
            text = text[at:]
        held, size = [text], len(text)
    if held:
        yield "".join(held)
