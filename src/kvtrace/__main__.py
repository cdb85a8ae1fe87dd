"""`python -m kvtrace`."""

from .cli import main

main()
