"""What a verb has started is ended, and nothing else."""

import sys

from tests.world.captured import captured

# A process with a child from before it was this program, as a shell leaves by exec, and one of its
# own.
PROGRAM = """
import subprocess
from mpsd.simulator import own_mpsd as leftovers
of_others = subprocess.Popen(["sleep", "60"])
others = leftovers.processes()
leftovers.adopt_orphans()
own = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"])
leftovers.end_all(spared=others)
print(len(leftovers.processes()), of_others.poll())
leftovers.end_all()
print(len(leftovers.processes()))
"""


def test_every_descendant_is_ended_but_those_from_before_and_theirs() -> None:
    answer = captured([sys.executable, "-c", PROGRAM], check=False)
    assert (answer.stdout.split(), answer.stderr) == (["1", "None", "0"], "")
