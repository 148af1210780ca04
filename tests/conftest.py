"""Shared by all tests: makes `reference` and `invariants` importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
