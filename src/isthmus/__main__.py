"""`python -m isthmus` is the `isthmus` command, for environments whose scripts are not on the path."""

import sys

from isthmus.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
