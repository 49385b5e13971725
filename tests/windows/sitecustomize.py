"""Python imports this first: with this folder on PYTHONPATH, a process has Windows' semantics (see `stand_in`)."""

import stand_in

stand_in.install()
