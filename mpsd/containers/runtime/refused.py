"""What stops a container from being made.

One rule: each reason is a sentence that names the object, what is wrong with it and the remedy.
"""


class Refused(Exception):
    """reasons: all that is wrong, in plain words. exit_code: the one of `mpsd-runtime`."""

    def __init__(self, *reasons: str, exit_code: int = 1) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.exit_code = exit_code


def shown(text: str, longest: int = 60) -> str:
    """Text of somebody else for one line of a message: escaped and cut."""
    return ascii(text if len(text) <= longest else text[: longest - 1] + "…")
