"""Which tokens of a vocabulary become SSEP, PDEP and PAD. Server and clients derive the same from one directory."""

import re
from collections.abc import Collection, Sequence
from typing import Final

from minipic_sdk.errors import ProfileError
from minipic_sdk.layout import ControlTokens
from minipic_sdk.tokenize.base import AddedToken

_RESERVED: Final = re.compile(r"reserved|unused|extra_id|placeholder|control|dummy", re.IGNORECASE)
# What a model, a server or a template may mean even where today's template doesn't say it.
_MEANT: Final = re.compile(
    r"bos|eos|pad|unk|mask|cls|im_|inst|begin_of|start_of|end_of|end_header|endoftext|eot|eom|python|tool|think"
    r"|vision|image|video|audio|system|user|assistant|^</?s>$",
    re.IGNORECASE,
)


def choose_control_tokens(
    added_tokens: Sequence[AddedToken], *, template: str, used: Collection[int | str], vocab_size: int
) -> ControlTokens:
    """Three special tokens that nothing else uses: reserved ones first, then markup of other uses, each by id.

    Args:
        added_tokens: of the tokenizer.
        template: the chat template; tokens that it names are not taken.
        used: ids and texts that the configuration gives a meaning (BOS, EOS, ...).
        vocab_size: rows of the embedding; the model looks control tokens up like any other.

    Raises:
        ProfileError: fewer than three are left.
    """
    free = [
        t
        for t in sorted(added_tokens)
        if t.special and t.id < vocab_size and t.id not in used and t.content not in used and t.content not in template
    ]
    reserved = [t for t in free if _RESERVED.search(t.content)]
    others = [t for t in free if t not in reserved and not _MEANT.search(t.content)]
    chosen = (reserved + others)[:3]
    if len(chosen) < 3:
        raise ProfileError(
            f"the vocabulary has {len(chosen)} unused special tokens and three are needed: "
            "pass control_tokens (ids that neither text nor the template uses)"
        )
    return ControlTokens(*(t.id for t in chosen))
