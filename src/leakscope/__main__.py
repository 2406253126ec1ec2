"""`python -m leakscope` runs the command line."""

from leakscope.cli import main

main()
