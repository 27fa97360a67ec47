"""Where things are in the source tree, for tests in any folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHILDREN = ROOT / "tests" / "children"
"""Scripts that a daemon runs in place of training jobs."""
BUNDLES = ROOT / "tests" / "protocol" / "bundles"
"""Checkpoints that TensorFlow wrote."""
