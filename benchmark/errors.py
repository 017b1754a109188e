"""What a user can fix: shown as one message, without a traceback."""


class UserError(ValueError):
    """Base of errors in a suite, on the command line, or in somebody's data."""
