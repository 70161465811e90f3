"""The same machines as in tests/simulator."""

from tests.simulator.conftest import daemon as daemon
from tests.simulator.conftest import flags as flags
from tests.simulator.conftest import folder as folder
from tests.simulator.conftest import machine as machine
from tests.simulator.conftest import pair as pair
from tests.simulator.conftest import pair_daemon as pair_daemon
