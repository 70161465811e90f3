"""Output that a page claims is what the command says, where it needs no machine."""

import shutil
from pathlib import Path

import pytest

from tests.docs.commands import Told, told_in
from tests.docs.pages import ROOT, Fence, pages
from tests.docs.shown import differs, is_tried

BLOCKS = [
    [*told_in(fence)]
    for page in pages()
    for fence in page.fences
    if any(line.lstrip().startswith("$ ") for line in fence.text.splitlines())
]
TRIED = [block for block in BLOCKS if any(is_tried(told) for told in block)]


@pytest.mark.parametrize("block", TRIED, ids=lambda block: block[0].place)
def test_a_command_says_what_the_page_shows(block: list[Told], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "limits", tmp_path / "limits")
    (tmp_path / "mpsd" / "cli").mkdir(parents=True)
    shutil.copy(ROOT / "mpsd/cli/mps-sample.yaml", tmp_path / "mpsd/cli")
    wrong = [said for told in block if is_tried(told) and (said := differs(told, tmp_path))]
    assert not wrong, "it says:\n" + "\n".join(wrong)


def test_output_that_differs_is_said(tmp_path: Path) -> None:
    block = Fence("page", 1, "$ mpsd --version\nmpsd …\n$ mpsd --version\nnot mpsd\n")
    same, other = told_in(block)
    assert differs(same, tmp_path) == ""
    assert differs(other, tmp_path).startswith("page:4: $ mpsd --version\nmpsd ")
