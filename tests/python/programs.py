"""What Warmpath's programs print of themselves. Not here: what they serve."""

import functools
import os
import pathlib
import re
import subprocess

PROGRAMS = pathlib.Path(__file__).parents[2] / "target/debug"


@functools.cache
def usage(program, *subcommand):
    """Returns what `-h` of a program, or of a subcommand of it, prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMPATH_")}
    command = [PROGRAMS / program, *subcommand, "-h"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment).stdout


def flags(program, *subcommand):
    """Returns the names of a program's flags, or of those of a subcommand."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", usage(program, *subcommand)))


def variables(program):
    """Returns the names of the variables that a program reads in place of flags."""
    return set(re.findall(r"\[env:\s+(\w+)=", usage(program)))
