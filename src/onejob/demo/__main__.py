"""Run the demo: python -m onejob.demo."""

import sys

from onejob.demo import main

sys.exit(main(json="--json" in sys.argv[1:]))
