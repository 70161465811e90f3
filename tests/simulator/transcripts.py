"""The transcripts of real hardware, so that the tests type no expectation a second time."""

import re
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "data" / "transcripts"


def transcript(number: int, title: str = "") -> str:
    """The transcript with this number; of that the section whose heading begins with `title`."""
    (path,) = _FOLDER.glob(f"h200-r580-{number}-*.txt")
    text = path.read_text()
    if not title:
        return text
    found = re.search(
        rf"^######## {re.escape(title)}.*?\n(.*?)(?=^######## |\Z)",
        text,
        re.DOTALL | re.MULTILINE,
    )
    assert found, title
    return found[1]
