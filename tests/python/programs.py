"""What Warmpath's programs print of themselves. Not here: what they serve."""

import functools
import os
import pathlib
import re
import subprocess

PROGRAMS = pathlib.Path(__file__).parents[2] / "target/debug"


@functools.cache
def usage(program):
    """Returns what `-h` of a program prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMPATH_")}
    command = [PROGRAMS / program, "-h"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment).stdout


def flags(program):
    """Returns the names of a program's flags."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", usage(program)))


def variables(program):
    """Returns the names of the variables that a program reads in place of flags."""
    return set(re.findall(r"\[env:\s+(\w+)=", usage(program)))
