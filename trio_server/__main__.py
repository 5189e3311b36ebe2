"""`python -m trio_server` is `trio-server`."""

import sys

from trio_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
