"""`python -m kvtrace`.

The console scripts start here, too: before the command line is there, a signal ends them without a traceback.
"""

from ._base.process import forget_handlers, skip_teardown


def kvtrace() -> None:
    """The console script `kvtrace`."""
    forget_handlers()
    skip_teardown()
    from .cli import main

    main()


def datagen() -> None:
    """The console script `datagen`."""
    forget_handlers()
    skip_teardown()
    from .cli.datagen import main

    main()


if __name__ == "__main__":
    kvtrace()
