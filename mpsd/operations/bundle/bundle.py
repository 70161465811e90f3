"""`mpsd bundle`: a support archive of this machine, with nothing secret in it."""

from socket import gethostname

from mpsd.operations.bundle.bundle_writing import Output, bundle_to
from mpsd.operations.bundle.node_bundle import parts
from mpsd.operations.doctor.doctor import KubeletDirectory, Root, place_of
from mpsd.operations.doctor.doctor_report import record
from mpsd.platform.options import LimitsDirectory, RunDirectory, Simulate
from mpsd.platform.settings import settings


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
