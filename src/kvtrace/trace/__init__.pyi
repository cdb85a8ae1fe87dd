"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .building import TraceBuilder as TraceBuilder
from .building import concat as concat
from .building import toy as toy
from .columns import Columns as Columns
from .conversion import assume_outputs as assume_outputs
from .conversion import convert as convert
from .conversion import fold as fold
from .conversion import sample_rows as sample_rows
from .conversion import sample_sessions as sample_sessions
from .conversion import speed_up as speed_up
from .domains import count_domains as count_domains
from .domains import in_domains as in_domains
from .hits import Hits as Hits
from .hits import count_hits as count_hits
from .hits import unlimited_hits as unlimited_hits
from .normalise import Fixes as Fixes
from .prefix_forest import Forest as Forest
from .prefix_forest import forest as forest
from .trace import Request as Request
from .trace import Trace as Trace
from .trace import first_seen as first_seen
