"""Replaces its program by itself, again and again, with the environment that it began with."""

import os
import sys

os.execve(sys.executable, [sys.executable, "-S", "-E", __file__], os.environ)
