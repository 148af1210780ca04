"""A prompt declared piece by piece, and what each of its tokens sees: independent of the product's parser.

Tests say what they mean ("a head, spans A and B, a question"); this module writes the physical token list and the
request metadata, and spells out visibility and positions token by token for the references.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

Kind = Literal["head", "span", "dependent"]


class Control(NamedTuple):
    """Control ids that a test engine is started with."""

    ssep: int = 509
    pdep: int = 510
    pad: int = 511


@dataclass(frozen=True)
class Piece:
    """One segment as the user means it: its own tokens, without control tokens and padding."""

    kind: Kind
    tokens: tuple[int, ...]
    logical: int | None = None  # place of its first token; None: behind the piece before it
    hidden: int = 0  # leading tokens of a span that no other piece sees
    public: bool = False

    def __repr__(self) -> str:
        placed = f" at {self.logical} hiding {self.hidden}" if self.logical is not None or self.hidden else ""
        return f"{self.kind}({len(self.tokens)} tokens {self.tokens[:2]}...{placed})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every token on a line


def head(*tokens: int) -> Piece:
    """Ordinary text before the first control token."""
    return Piece("head", tokens)


def span(*tokens: int, **kwargs: object) -> Piece:
    """A piece that sees the anchor and itself."""
    return Piece("span", tokens, **kwargs)  # type: ignore[arg-type]


def dep(*tokens: int, **kwargs: object) -> Piece:
    """A piece that sees everything shown before its place."""
    return Piece("dependent", tokens, **kwargs)  # type: ignore[arg-type]


class Token(NamedTuple):
    """One visible token of a prompt."""

    id: int
    piece: int
    physical: int
    stored: int  # position at which its key is cached: right behind the anchor for spans
    logical: int  # position at which other pieces see it
    shown: bool  # whether other pieces see it


@dataclass(frozen=True)
class PromptSpec:
    """Pieces in physical order."""

    pieces: tuple[Piece, ...]
    anchor: int = 0  # leading tokens of the head that every span sees
    block: int = 16
    control: Control = Control()
    names: tuple[str, ...] = field(default=())

    def physical(self) -> list[int]:
        """The token list that the engine gets."""
        ids: list[int] = []
        for i, piece in enumerate(self.pieces):
            if piece.kind != "head":
                ids.append(self.control.ssep if piece.kind == "span" else self.control.pdep)
            ids += piece.tokens
            if i < len(self.pieces) - 1 or piece.kind == "span":
                ids += [self.control.pad] * (-len(ids) % self.block)
        return ids

    def starts(self) -> list[int]:
        """Logical place of each piece's first token."""
        out: list[int] = []
        at = 0
        for piece in self.pieces:
            out.append(at if piece.logical is None else piece.logical)
            at = out[-1] + len(piece.tokens)
        return out

    def meta(self, **more: object) -> str:
        """The string for ``extra_args["minipic"]``, written by hand."""
        body: dict[str, object] = {"v": 1}
        if self.anchor:
            body["anchor"] = list(self.pieces[0].tokens[: self.anchor])
        if any(p.logical is not None or p.hidden for p in self.pieces):
            body["placements"] = [[at, p.hidden] for at, p in zip(self.starts(), self.pieces, strict=True)]
        spans = [p for p in self.pieces if p.kind == "span"]
        if public := [i for i, p in enumerate(spans) if p.public]:
            body["public"] = public
        if self.names:
            body["names"] = list(self.names)
        return json.dumps({**body, **more})

    def extended(self, generated: list[int]) -> "PromptSpec":
        """The prompt with generated tokens in its last piece."""
        last = self.pieces[-1]
        return replace(self, pieces=(*self.pieces[:-1], replace(last, tokens=(*last.tokens, *generated))))

    def bare(self) -> list[int]:
        """Visible tokens in logical order, stale copies left out: what a server without spans would get."""
        tokens = [t for t in self.tokens() if t.shown]
        return [t.id for t in sorted(tokens, key=lambda t: t.logical)]

    def tokens(self) -> list[Token]:
        """Every visible token, in physical order."""
        out: list[Token] = []
        at = 0
        for i, (piece, place) in enumerate(zip(self.pieces, self.starts(), strict=True)):
            control = piece.kind != "head"
            first = self.anchor if piece.kind == "span" else place
            for k, token in enumerate(piece.tokens):
                shown = k >= piece.hidden
                out.append(Token(token, i, at + control + k, first + k, place + k, shown))
            at += control + len(piece.tokens)
            at += -at % self.block
        return out

    def sees(self) -> np.ndarray:
        """[t, j]: token t attends to token j; both in the order of ``tokens()``."""
        tokens, starts = self.tokens(), self.starts()
        table = np.zeros((len(tokens), len(tokens)), dtype=bool)
        for row, t in enumerate(tokens):
            for column, j in enumerate(tokens):
                if j.piece == t.piece:
                    seen = j.stored <= t.stored
                elif self.pieces[t.piece].kind == "span":
                    seen = self.pieces[j.piece].kind == "head" and j.logical < self.anchor
                elif self.pieces[t.piece].kind == "head":
                    seen = False
                else:
                    seen = j.shown and j.logical < starts[t.piece]
                table[row, column] = seen
        return table

    def key_positions(self) -> np.ndarray:
        """[t, j]: position at which t sees the key of j: within its span where both stand there, else logical."""
        tokens = self.tokens()
        stored = np.array([t.stored for t in tokens])
        logical = np.array([t.logical for t in tokens])
        frame = np.array([self.pieces[t.piece].kind == "span" for t in tokens])
        return np.where(frame[:, None], stored[None, :], logical[None, :])

    def query_positions(self) -> np.ndarray:
        """[t]: position of each token's own query."""
        return np.array([t.stored for t in self.tokens()])
