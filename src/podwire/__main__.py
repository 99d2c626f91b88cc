"""``python -m podwire`` is the ``podwire`` command."""

import sys

from podwire.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
