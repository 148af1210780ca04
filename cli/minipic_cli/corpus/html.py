"""HTML as the text of its page: headings and lists in Markdown, no scripts, no navigation; streaming."""

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from typing import Final

_SKIPPED: Final = frozenset(
    ("script", "style", "template", "noscript", "svg", "math", "nav", "select", "iframe", "head")
)
_INSIDE: Final = ("figcaption", "summary", "dt", "dd", "hr", "h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS: Final = frozenset(
    {
        *_INSIDE,
        "p",
        "div",
        "section",
        "article",
        "main",
        "header",
        "footer",
        "aside",
        "blockquote",
        "ul",
        "ol",
        "li",
        "dl",
        "table",
        "tr",
        "figure",
        "form",
        "fieldset",
        "details",
        "pre",
        "address",
        "body",
    }
)
_SPACE: Final = re.compile(r"\s+")


def plain(pieces: Iterable[str]) -> Iterator[str]:
    """The readable text of HTML, piece by piece."""
    parser = _Plain()
    for piece in pieces:
        parser.feed(piece)
        yield parser.taken()
    parser.close()
    yield parser.taken()


class _Plain(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._out: list[str] = []
        self._skipping: list[str] = []  # open elements whose text is not for readers
        self._pre = 0
        self._gap = ""  # what stands between the text so far and the next

    def taken(self) -> str:
        """The text made since the last call."""
        text, self._out = "".join(self._out), []
        return text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping or tag in _SKIPPED:
            # An element that is never closed must not swallow the page: <body> ends <head> in any case.
            if tag == "body":
                self._skipping.clear()
            elif tag in _SKIPPED:
                self._skipping.append(tag)
            return
        if tag == "br":
            self._gap = self._gap or "\n"
        elif tag in ("td", "th"):
            self._gap = self._gap if "\n" in self._gap else " | "
        elif tag in _BLOCKS:
            wanted = "\n" if tag in ("li", "tr") else "\n\n"
            self._gap = max(wanted, self._gap.strip(" |"), key=len)
            if tag == "pre":
                self._pre += 1
                self._write("```\n", raw=True)
            elif tag == "li":
                self._write("- ", raw=True)
            elif tag[0] == "h" and tag[1:].isdigit():
                self._write("#" * int(tag[1:]) + " ", raw=True)

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            if tag in self._skipping:
                while self._skipping.pop() != tag:
                    pass
            return
        if tag == "pre" and self._pre:
            self._pre -= 1
            self._gap = ""
            self._write("\n```", raw=True)
        if tag in _BLOCKS and tag not in ("li", "tr"):
            self._gap = "\n\n"

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self._write(data, raw=self._pre > 0)

    def _write(self, text: str, *, raw: bool) -> None:
        if not raw:
            text = _SPACE.sub(" ", text)
            if text[:1] == " ":
                self._gap = self._gap or " "
            text, trailing = text.strip(" "), text.endswith(" ")
            if not text:
                return
            self._out += (self._gap, text)
            self._gap = " " if trailing else ""
            return
        self._out += (self._gap, text)
        self._gap = ""
