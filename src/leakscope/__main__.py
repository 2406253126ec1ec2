"""`python -m leakscope` is the command line."""

from leakscope.cli import main

main()
