"""The golden set, written by hand: nothing here is computed. Block size 4; S, D and P are SSEP, PDEP and PAD.

``stored``, ``logical``: one entry per physical token, "-" for invisible ones. ``sees``: per visible token (physical
index) the physical tokens it attends to, x or dot under each token of the prompt.
"""

from dataclasses import dataclass

from reference.prompts import Piece, dep, head, span


@dataclass(frozen=True)
class Golden:
    """One prompt and everything the rules say about it."""

    pieces: tuple[Piece, ...]
    anchor: int
    tokens: str
    segments: tuple[tuple[str, int, int, int, int, int, int], ...]  # kind, start, stop, visible, logical, hidden
    stored: str
    logical: str
    sees: dict[int, str]


GOLDEN = {
    "anchored": Golden(
        pieces=(head(1, 2, 3, 4, 5), span(10, 11), span(20), dep(30, 31)),
        anchor=2,
        tokens=" 1 2 3 4   5 P P P   S 10 11 P   S 20 P P   D 30 31",
        segments=(
            ("head", 0, 8, 0, 5, 0, 0),
            ("span", 8, 12, 9, 11, 5, 0),
            ("span", 12, 16, 13, 14, 7, 0),
            ("dependent", 16, 19, 17, 19, 8, 0),
        ),
        stored=" 0 1 2 3   4 - - -   - 2 3 -   - 2 - -   - 8 9",
        logical="0 1 2 3   4 - - -   - 5 6 -   - 7 - -   - 8 9",
        sees={
            0: "x... .... .... .... ...",
            1: "xx.. .... .... .... ...",
            2: "xxx. .... .... .... ...",
            3: "xxxx .... .... .... ...",
            4: "xxxx x... .... .... ...",
            9: "xx.. .... .x.. .... ...",
            10: "xx.. .... .xx. .... ...",
            13: "xx.. .... .... .x.. ...",
            17: "xxxx x... .xx. .x.. .x.",
            18: "xxxx x... .xx. .x.. .xx",
        },
    ),
    "empty-anchor-without-head": Golden(
        pieces=(span(10, 11, 12), span(20, 21, 22, 23), dep(30)),
        anchor=0,
        tokens="S 10 11 12   S 20 21 22   23 P P P   D 30",  # the first span ends on a block boundary
        segments=(
            ("span", 0, 4, 1, 4, 0, 0),
            ("span", 4, 12, 5, 9, 3, 0),
            ("dependent", 12, 14, 13, 14, 7, 0),
        ),
        stored=" - 0 1 2   - 0 1 2   3 - - -   - 7",
        logical="- 0 1 2   - 3 4 5   6 - - -   - 7",
        sees={
            1: ".x.. .... .... ..",
            2: ".xx. .... .... ..",
            3: ".xxx .... .... ..",
            5: ".... .x.. .... ..",
            6: ".... .xx. .... ..",
            7: ".... .xxx .... ..",
            8: ".... .xxx x... ..",
            13: ".xxx .xxx x... .x",
        },
    ),
    "dependent-in-the-middle": Golden(
        pieces=(head(1, 2), span(10), dep(30, 31), span(20), dep(40)),
        anchor=1,
        tokens="1 2 P P   S 10 P P   D 30 31 P   S 20 P P   D 40",
        segments=(
            ("head", 0, 4, 0, 2, 0, 0),
            ("span", 4, 8, 5, 6, 2, 0),
            ("dependent", 8, 12, 9, 11, 3, 0),
            ("span", 12, 16, 13, 14, 5, 0),
            ("dependent", 16, 18, 17, 18, 6, 0),
        ),
        stored=" 0 1 - -   - 1 - -   - 3 4 -   - 1 - -   - 6",
        logical="0 1 - -   - 2 - -   - 3 4 -   - 5 - -   - 6",
        sees={
            0: "x... .... .... .... ..",
            1: "xx.. .... .... .... ..",
            5: "x... .x.. .... .... ..",
            9: "xx.. .x.. .x.. .... ..",
            10: "xx.. .x.. .xx. .... ..",
            13: "x... .... .... .x.. ..",
            17: "xx.. .x.. .xx. .x.. .x",
        },
    ),
    "empty-document": Golden(
        pieces=(head(1, 2, 3, 4), span(), span(20), dep(30)),
        anchor=4,
        tokens="1 2 3 4   S P P P   S 20 P P   D 30",
        segments=(
            ("head", 0, 4, 0, 4, 0, 0),
            ("span", 4, 8, 5, 5, 4, 0),
            ("span", 8, 12, 9, 10, 4, 0),
            ("dependent", 12, 14, 13, 14, 5, 0),
        ),
        stored=" 0 1 2 3   - - - -   - 4 - -   - 5",
        logical="0 1 2 3   - - - -   - 4 - -   - 5",
        sees={
            0: "x... .... .... ..",
            1: "xx.. .... .... ..",
            2: "xxx. .... .... ..",
            3: "xxxx .... .... ..",
            9: "xxxx .... .x.. ..",
            13: "xxxx .... .x.. .x",
        },
    ),
    "order-free": Golden(  # logically: 1 2, then 30 at 2, span 20 at 3, span 10 11 at 5, 40 at 9
        pieces=(
            head(1, 2),
            span(10, 11, logical=5),
            span(20, logical=3),
            dep(30, logical=2),
            dep(40, logical=9),
        ),
        anchor=1,
        tokens="1 2 P P   S 10 11 P   S 20 P P   D 30 P P   D 40",
        segments=(
            ("head", 0, 4, 0, 2, 0, 0),
            ("span", 4, 8, 5, 7, 5, 0),
            ("span", 8, 12, 9, 10, 3, 0),
            ("dependent", 12, 16, 13, 14, 2, 0),
            ("dependent", 16, 18, 17, 18, 9, 0),
        ),
        stored=" 0 1 - -   - 1 2 -   - 1 - -   - 2 - -   - 9",
        logical="0 1 - -   - 5 6 -   - 3 - -   - 2 - -   - 9",
        sees={
            0: "x... .... .... .... ..",
            1: "xx.. .... .... .... ..",
            5: "x... .x.. .... .... ..",
            6: "x... .xx. .... .... ..",
            9: "x... .... .x.. .... ..",
            13: "xx.. .... .... .x.. ..",  # both spans stand behind it
            17: "xx.. .xx. .x.. .x.. .x",
        },
    ),
    "stale-copies-hidden": Golden(  # EPIC: 10 is computed again in context, its copy in the span is seen there only
        pieces=(
            head(1, 2),
            span(10, 11, 12, logical=2, hidden=1),
            dep(10, logical=2),
            dep(40, logical=5),
        ),
        anchor=1,
        tokens="1 2 P P   S 10 11 12   D 10 P P   D 40",
        segments=(
            ("head", 0, 4, 0, 2, 0, 0),
            ("span", 4, 8, 5, 8, 2, 1),
            ("dependent", 8, 12, 9, 10, 2, 0),
            ("dependent", 12, 14, 13, 14, 5, 0),
        ),
        stored=" 0 1 - -   - 1 2 3   - 2 - -   - 5",
        logical="0 1 - -   - 2 3 4   - 2 - -   - 5",
        sees={
            0: "x... .... .... ..",
            1: "xx.. .... .... ..",
            5: "x... .x.. .... ..",
            6: "x... .xx. .... ..",
            7: "x... .xxx .... ..",
            9: "xx.. .... .x.. ..",
            13: "xx.. ..xx .x.. .x",
        },
    ),
    "spans-alone": Golden(  # warming: nothing is generated behind it
        pieces=(head(1), span(10), span(20, 21, 22)),
        anchor=1,
        tokens="1 P P P   S 10 P P   S 20 21 22",
        segments=(
            ("head", 0, 4, 0, 1, 0, 0),
            ("span", 4, 8, 5, 6, 1, 0),
            ("span", 8, 12, 9, 12, 2, 0),
        ),
        stored=" 0 - - -   - 1 - -   - 1 2 3",
        logical="0 - - -   - 1 - -   - 2 3 4",
        sees={
            0: "x... .... ....",
            5: "x... .x.. ....",
            9: "x... .... .x..",
            10: "x... .... .xx.",
            11: "x... .... .xxx",
        },
    ),
}
