"""The GPU kernels, one folder each: ``kernel.py`` (Triton), ``naive.py`` (the same in readable PyTorch).

* ``attend``: attention of short queries over runs of keys in the paged cache; the query is turned once per run.
* ``gather``: copies the keys and values that long queries see into contiguous memory, turning keys of moved spans,
  for a stock FlashAttention call.

``tests/kernels`` compares each with its reference: under Triton's interpreter on any machine, compiled on a GPU.
"""
