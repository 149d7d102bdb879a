"""The exception for mistakes that the user can put right."""


class UserError(ValueError):
    """A mistake in a flag, a preset or a file of the user's.

    The message names the flag or the file, the value found and a value that would work. Programs
    print it without a traceback and exit with a non-zero status.
    """
