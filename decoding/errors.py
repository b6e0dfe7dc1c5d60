"""The one exception whose text is meant for people."""


class UserError(ValueError):
    """Bad input, told in a sentence that says what to do about it.

    Whoever talks to a person (page, command line, HTTP) shows ``str(error)`` as it is and no traceback.
    """
