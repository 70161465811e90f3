"""How programs import: what they bring is passed over by the garbage collector."""

import gc
import sys
from importlib import import_module
from pathlib import Path

import pytest

from mpsd.platform.imports import lasting
from tests.world.captured import captured

BIN = Path(sys.executable).parent


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of one that nobody has imported."""
    (tmp_path / "mpsd_test_brought.py").write_text("KEPT = [{}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "mpsd_test_brought"


def test_what_is_imported_is_looked_at_no_more_and_what_comes_later_is(module: str) -> None:
    with lasting():
        kept = import_module(module).KEPT
    later: list[object] = [{}]
    seen = gc.get_objects()
    assert not any(thing is kept for thing in seen)
    assert any(thing is later for thing in seen)
    assert gc.isenabled()


@pytest.mark.parametrize("program", ["mpsd", "kubectl-mps"])
def test_ctrl_c_while_a_program_starts_ends_it_without_a_traceback(
    program: str, tmp_path: Path
) -> None:
    """A module that a plain status imports is interrupted half way."""
    (tmp_path / "msgspec.py").write_text("raise KeyboardInterrupt\n")
    done = captured(
        [BIN / program, "status", "-o", "json"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_who_closes_standard_output_gets_no_answer_and_no_traceback() -> None:
    command = ["bash", "-c", 'exec "$0" doctor --run-dir /nonexistent >&-', str(BIN / "mpsd")]
    done = captured(command, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("program", "without"),
    [
        (
            "control",
            {"aiohttp", "cryptography", "grpc", "kubernetes", "ssl", "urllib3", "_hashlib"},
        ),
        ("agent", {"kubernetes"}),
        ("webhook", {"grpc", "numpy"}),
        ("scheduler", {"grpc"}),
    ],
)
def test_a_process_that_lasts_loads_nothing_that_it_does_without(
    program: str, without: set[str], tmp_path: Path
) -> None:
    """Each ends here, where there is no GPU and no cluster, after all that it begins with has been
    loaded."""
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): ...\nnvmlMemory_v2 = 2\ndef nvmlInit(): raise NVMLError\n"
    )
    code = (
        f"import sys\nfrom mpsd.cli.main import main\nsys.argv = ['mpsd', '{program}',"
        " '--log-format', 'json']\ntry: main()\nexcept SystemExit as end: print(end.code, *(name"
        " for name, one in sys.modules.items() if one))\n"
    )
    done = captured(
        [sys.executable, "-c", code],
        env={
            "PYTHONPATH": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "MPSD_RUN_DIR": str(tmp_path / "run"),
        },
        check=False,
    )
    ended, *loaded = done.stdout.split()
    assert ended in {"1", "2"}, done.stderr
    assert f"mpsd.cli.{program}" in loaded
    assert not {name.partition(".")[0] for name in loaded} & without
    assert [name for name in loaded if name.startswith("mpsd.simulator.")] in (
        [],
        ["mpsd.simulator.machine"],
    )


@pytest.mark.parametrize(
    ("words", "most", "without"),
    [
        (["--help"], 18, {"msgspec", "rich", "ssl"}),
        (["status", "--run-dir", "/nowhere"], 35, set()),
    ],
)
def test_a_short_answer_loads_what_it_is_made_of_and_no_more(
    words: list[str], most: int, without: set[str]
) -> None:
    """most: modules of mpsd. Where each ten of whatever package cost 5 ms, these keep an answer
    within its time."""
    heavy = {"aiohttp", "asyncio", "cryptography", "grpc", "kubernetes", "numpy", "urllib3", "yaml"}
    code = (
        f"import sys\nfrom mpsd.cli.main import main\nsys.argv = ['mpsd', *{words}]\n"
        "try: main()\nexcept SystemExit: print(); print(*sys.modules)\n"
    )
    done = captured([sys.executable, "-c", code])
    loaded = done.stdout.splitlines()[-1].split()
    assert not {name.partition(".")[0] for name in loaded} & (heavy | without)
    ours = [name for name in loaded if name.partition(".")[0] == "mpsd"]
    assert "mpsd.cli.main" in ours
    assert not [name for name in ours if name.startswith("mpsd.simulator")]
    assert len(ours) <= most, ours
