"""How every verb speaks, as verbs know it: what `speech` has, and the option that chooses a format."""

from typing import Annotated

import typer

from mpsd.platform.speech import ExitCode as ExitCode
from mpsd.platform.speech import Format as Format
from mpsd.platform.speech import StatusFormat as StatusFormat
from mpsd.platform.speech import answers as answers
from mpsd.platform.speech import complaints as complaints
from mpsd.platform.speech import counted as counted
from mpsd.platform.speech import one_line as one_line
from mpsd.platform.speech import print_invalid as print_invalid
from mpsd.platform.speech import print_json as print_json
from mpsd.platform.speech import print_yaml as print_yaml
from mpsd.platform.speech import problem_line as problem_line

OutputFormat = Annotated[
    Format, typer.Option("-o", "--output", metavar="FORMAT", help="text for people, json for machines.")
]
