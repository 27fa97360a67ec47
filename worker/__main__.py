"""`python -m worker package.module:function`: trains what the function describes with the ready-made loop."""

import sys

from worker.entry import main

sys.exit(main(sys.argv[1:]))
