"""`mpsd bundle`: a support archive of this machine, with nothing secret in it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from typing import Annotated

import typer

import mpsd
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.operations.bundle import node
from mpsd.operations.bundle.node import parts
from mpsd.operations.bundle.rules.contents import INDEX, MOST_IN_ALL, BundlePart, IndexEntry, cut, index, missing_part
from mpsd.operations.doctor.verbs import KubeletDirectory, Root, place_of, record
from mpsd.platform.console import complaints
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.options import LimitsDirectory, RunDirectory, Simulate
from mpsd.platform.settings import settings

# Writes a bundle and says how far it is, for `mpsd bundle` and `kubectl mps bundle`.
#
# One rule: progress goes to standard error, the name of the file alone to standard output.

Output = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where; else mpsd-bundle-….tar.gz here.", show_default=False),
]

Put = Callable[[BundlePart], None]


@contextmanager
def bundle_to(output: str | None, program: str, of: str) -> Iterator[Put]:
    """of: what it is of, such as `node gpu-a1`. Writes the index and names the file when all parts were put; after
    Ctrl-C nothing is left and the program ends.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = f"mpsd-bundle-{of.replace(' ', '-').replace('/', '-')}-{stamp}"
    path = Path(output or f"{folder}.tar.gz")
    if path.is_dir() or path.is_symlink() or (path.exists() and not path.is_file()):
        problem = Problem("setting", "-o", shown(str(path), 200), "is no plain file", "name one that is to be written")
        raise InvalidInput(program, [problem])
    entries: list[IndexEntry] = []
    try:
        with node.writing(path, folder) as tar:
            yield lambda part: entries.append(_put(tar, part, sum(entry.size for entry in entries), program))
            said = index(of, mpsd.__version__, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), entries)
            tar.add(INDEX, said.encode())
    except node.CannotWrite as error:
        why = f"cannot be written: {error.strerror}"
        problem = Problem(
            "setting", "-o", shown(str(path), 200), why, "name a file where there is room and you may write"
        )
        raise InvalidInput(program, [problem]) from None
    except KeyboardInterrupt:
        complaints().print(f"{program}: interrupted; nothing was written")
        sys.exit(INTERRUPTED)
    missing = sum(bool(entry.part.missing) for entry in entries)
    complaints().print(
        f"{program}: {len(entries) - missing} parts, {missing} could not be had; {INDEX} in it says which"
    )
    print(path)
    sys.stdout.flush()


def _put(tar: node.Archive, part: BundlePart, so_far: int, program: str) -> IndexEntry:
    if not part.missing and so_far >= MOST_IN_ALL:
        part = missing_part(part.file, part.about, f"the bundle has {MOST_IN_ALL // 1024**2} MiB already")
    if part.missing:
        complaints().print(f"{program}: not {part.file}: {part.missing}")
        return IndexEntry(part, 0)
    complaints().print(f"{program}: {part.file}")
    written = cut(part.text)
    tar.add(part.file, written.data)
    return IndexEntry(part, len(written.data), written.left_out)


def bundle(
    output: Output = None,
    simulate: Simulate = None,
    limits: LimitsDirectory = None,
    run_dir: RunDirectory = None,
    root: Root = None,
    kubelet_dir: KubeletDirectory = None,
) -> None:
    """Gather what somebody who helps needs to know of this machine, in one file that only you may read.

    In it: what `mpsd doctor` says, GET /v1/node, metrics, both limits files, records, limits and gates of the domains,
    the ends of the daemons' logs and of mpsd's own, driver and GPUs by NVML, versions of kernel, system and cgroups,
    the runtimes that container engines are configured with. INDEX.txt says what each part is, what was cut
    (2 MiB a part, its end; 64 MiB in all), and what could not be had and why.

    Not in it: environments and arguments of programs, Secrets, tokens, keys, kubeconfigs. Of logs and configurations
    it takes what is known to be harmless; [left out] is in the place of the rest. Look through it before you send it.

    It only looks. Exits with 0 when the file is written, 2 when it cannot be; 130 after Ctrl-C, with nothing left.

        mpsd bundle
        mpsd bundle -o /tmp/for-support.tar.gz
        tar xzOf mpsd-bundle-*.tar.gz --wildcards '*/INDEX.txt'
    """
    chosen = settings(run_directory=run_dir, limits_directory=limits, simulate=simulate)
    place = place_of(chosen, root, kubelet_dir)
    with bundle_to(output, "mpsd bundle", f"node {gethostname()}") as put:
        for part in parts(place, record):
            put(part)
