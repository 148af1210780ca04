"""One test for each line whose loss nothing else would notice."""

from scheduling.test_directed import LONG, A, finish, prompt, warm
from scheduling.test_properties import check_empty


def test_an_unpadded_last_span_stays_last(dry):
    """Mutant: `tail.stop % size` left out of arrange._order."""
    d = dry(blocks=100)
    tail = LONG[:20]
    d.add(warm(tail[:15]), 1)  # its only full block
    d.drain()
    spec = warm(A, tail)
    ids = spec.physical()[:-11]
    object.__setattr__(spec, "physical", lambda: ids)
    d.add(spec, 1)
    d.drain()
    check_empty(d)


def test_the_missing_span_with_the_longest_resident_beginning_goes_first(dry):
    """Mutant: missing spans unsorted."""
    d = dry(blocks=100, max_num_batched_tokens=400)
    d.add(warm(LONG[:79]), 1)
    d.drain()
    before, spec = d.runner.computed, prompt(A, LONG)
    finish(d, {d.add(spec, 1): (spec, 1)})
    assert d.runner.computed - before == len(spec.physical()) - 32 - 80
