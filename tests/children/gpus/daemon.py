"""`supervisord` on a host whose GPUs are those of a `tests.gpu_host.GpuHost`; its JSON comes first."""

import json
import sys
from pathlib import Path

from supervisor.daemon import main
from supervisor.host.gpu_guard.client import GpuHelper

if __name__ == "__main__":
    host = json.loads(sys.argv.pop(1))
    sys.exit(main(gpu_helper=GpuHelper(tuple(host["command"]), Path(host["driver"]), host["poll_s"], host["within_s"])))
