"""`python -m isthmus` is the `isthmus` command, for environments whose scripts are not on the path."""

import sys

from isthmus.cli.main import program

if __name__ == "__main__":
    sys.exit(program())
