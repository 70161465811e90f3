"""What `mpsd` and `kubectl mps` are asked here: a machine on which mpsd runs, and clusters."""

from tests.cli.conftest import bare_world as bare_world
from tests.cli.conftest import world as world
from tests.whole.machine.conftest import machine as machine
from tests.whole.machine.conftest import pair as pair
from tests.whole.machine.conftest import served as served
from tests.whole.machine.conftest import serving as serving
