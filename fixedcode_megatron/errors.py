"""Exceptions whose message is all that the user needs."""


class UserError(ValueError):
    """A mistake in a flag, a preset or a file of the user's.

    The message names the flag or the file, the value found and a value that would work. Programs
    print it without a traceback and exit with a non-zero status.
    """


class TrainingError(RuntimeError):
    """A run that cannot go on, through no mistake in its flags.

    The message names rank, iteration and what to do. Programs print it without a traceback and exit
    with status 1.
    """
