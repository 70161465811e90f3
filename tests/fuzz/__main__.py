"""`make fuzz`: looks for bytes that break a target, guided by what they reach (atheris, which is
libFuzzer).

    python -m tests.fuzz 60               # every target for 60 s; 1 where something broke
    python -m tests.fuzz 60 review        # one of them
    python -m tests.fuzz replay review FILE

What was found to reach something new stays in build/fuzz/TARGET/corpus, so that the next run goes
on from there.
"""

import subprocess
import sys
from pathlib import Path

_FOLDER = Path("build") / "fuzz"
_LONGEST_BYTES = 16 * 1024
_LONGEST_S = 10  # of one input: more is a hang
_MOST_MIB = 2048
NAMES = ("review", "object", "manifest", "limits", "control", "environment")


def _fuzz(name: str, held_s: int) -> None:
    """In a process of its own, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["mpsd"]):
        # here, since only what is imported in this block is instrumented
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    corpus = _FOLDER / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = {
        "max_total_time": held_s,
        "max_len": _LONGEST_BYTES,
        "timeout": _LONGEST_S,
        "rss_limit_mb": _MOST_MIB,
        "artifact_prefix": f"{_FOLDER / name}/",
        "print_final_stats": 1,
    }
    atheris.Setup(
        [sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), str(corpus)],
        target.run,
    )
    atheris.Fuzz()


def _fuzz_all(names: list[str], held_s: int) -> int:
    broken = []
    for name in names:
        print(f"{name}: {held_s} s", flush=True)
        before = _found(name)
        command = [sys.executable, "-m", "tests.fuzz", "one", str(held_s), name]
        done = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, errors="replace", check=False
        )
        said = done.stderr.splitlines()
        print(
            *(
                f"  {line}"
                for line in said
                if "number_of_executed_units" in line or "new_units_added" in line
            ),
            sep="\n",
        )
        if done.returncode:
            print("\n".join(said[-40:]))
            broken += [(name, path) for path in sorted(_found(name) - before)]
            broken += [] if broken else [(name, _FOLDER / name)]
    for name, path in broken:
        print(f"{name} broke; see it again: {sys.executable} -m tests.fuzz replay {name} {path}")
    return 1 if broken else 0


def _found(name: str) -> set[Path]:
    return {path for path in (_FOLDER / name).glob("*-*") if path.is_file()}


def _replay(name: str, path: Path) -> None:
    from tests.fuzz.targets import TARGETS

    TARGETS[name].run(path.read_bytes())
    print(f"{name}: {path} breaks nothing")


def main() -> None:
    first, *rest = sys.argv[1:]
    if first == "one":
        _fuzz(rest[1], int(rest[0]))
    elif first == "replay":
        _replay(rest[0], Path(rest[1]))
    else:
        sys.exit(_fuzz_all(rest or list(NAMES), int(first)))


if __name__ == "__main__":
    main()
