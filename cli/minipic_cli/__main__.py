"""``python -m minipic_cli``."""

import sys

from minipic_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
