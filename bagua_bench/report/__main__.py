"""`bagua-bench report`, also `python -m bagua_bench.report`."""

from __future__ import annotations

import sys

from bagua_bench.report.page import main

if __name__ == "__main__":
    sys.exit(main())
