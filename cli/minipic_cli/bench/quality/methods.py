"""The ways to lay a prompt out that are compared, and what each computes when everything that can be is cached."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from minipic_cli.bench.quality.questions import Item
from minipic_sdk import ModelProfile, Prompt


class Method(NamedTuple):
    """A layout with its options; ``documents=False`` asks without them, to show what the model knows by itself."""

    options: Mapping[str, Any]
    family: str  # of the plot
    documents: bool = True
    adapter: bool = False  # whether the model has its adapter on


FULL: Final = "full attention"
NONE: Final = "no documents"
METHODS: Final[dict[str, Method]] = {
    FULL: Method({"layout": "prefix"}, "full"),
    NONE: Method({"layout": "prefix"}, "none", documents=False),
    "block": Method({"layout": "block"}, "anchored"),
    **{f"anchored {n}": Method({"layout": "anchored", "anchor": n}, "anchored") for n in (3, 8, 16)},
    "anchored head": Method({"layout": "anchored", "anchor": "head"}, "anchored"),
    **{f"epic {k}, block": Method({"layout": "epic", "k": k, "base": "block"}, "epic block") for k in (8, 31)},
    **{f"epic {k}, anchored": Method({"layout": "epic", "k": k}, "epic anchored") for k in (8, 31)},
    "prompt cache, block": Method({"layout": "prompt-cache", "base": "block"}, "prompt cache"),
    "prompt cache, anchored": Method({"layout": "prompt-cache"}, "prompt cache"),
}
ADAPTED: Final[dict[str, Method]] = {
    f"{name} + adapter": METHODS[name]._replace(family="adapter", adapter=True)
    for name in (FULL, "block", "anchored 3", "anchored head")
}
QUICK: Final = (FULL, NONE, "block", "anchored 3", "anchored head", "epic 31, block", "epic 31, anchored")


def compose(method: Method, item: Item, profile: ModelProfile) -> Prompt:
    """The item's prompt under a method."""
    documents = item.documents if method.documents else []
    return Prompt.compose(documents, item.question, profile=profile, **method.options)


def computed_tokens(prompt: Prompt, head: int) -> int:
    """Prompt tokens that an engine computes when the head and every span are cached, padding included.

    Args:
        prompt: of any layout.
        head: tokens before the first document; a plain prompt shares the full blocks of these.
    """
    if not prompt.has_spans:
        size = prompt.profile.block_size
        return len(prompt.token_ids) - head // size * size
    return sum(len(s.physical) for s in prompt.spans if s.kind == "dependent")
