"""One test for each line whose loss nothing else would notice."""

import pytest

from reference.corpus import words
from reference.prompts import PromptSpec, dep, head, span

HEAD, A, B, QUESTION = words(21, 1), words(40, 61), words(15, 62), words(9, 2)
SPEC = PromptSpec((head(*HEAD), span(*A), span(*B), dep(*QUESTION)), anchor=4)


def test_a_place_beyond_the_model_in_a_prompt_of_spans(engine):
    """Mutant: `any(s.logical_stop > limit ...)` left out of validation: max_tokens covers only the last segment."""
    far = PromptSpec((head(*HEAD), span(*A), dep(1, 2, logical=5000), span(*B, logical=100, hidden=15)), anchor=4)
    with pytest.raises(ValueError, match="max_model_len"):
        engine().ask(far, 1)


def test_streaming_input_sessions_are_refused(engine):
    """Mutant: `if request.resumable` left out."""
    from types import SimpleNamespace

    from invariants.engines import Ask
    from minipic_server.validation import check_request

    prompt, params = Ask(SPEC, 2).engine_input()
    request = SimpleNamespace(
        sampling_params=params,
        prompt_token_ids=prompt["prompt_token_ids"],
        prompt_embeds=None,
        mm_features=None,
        resumable=True,
    )
    with pytest.raises(ValueError, match="streaming-input"):
        check_request(engine().llm.llm_engine.vllm_config, request, prompt)
