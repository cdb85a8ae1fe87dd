"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .demand import Schedule as Schedule
from .demand import parse_schedule as parse_schedule
from .layout import CacheGroup as CacheGroup
from .layout import CacheLayout as CacheLayout
from .layout import LayerKind as LayerKind
from .live.prefix_cache import OutOfBlocks as OutOfBlocks
from .live.prefix_cache import PrefixCache as PrefixCache
from .live.prefix_cache import Sequence as Sequence
from .policies.base import Context as Context
from .setup import Grid as Grid
from .simulation import Setting as Setting
from .simulation import Simulation as Simulation
from .simulation import simulate as simulate
from .structures.reuse_table import ReuseTable as ReuseTable
from .structures.reuse_table import read_table as read_table
from .sweeps.running import sweep as sweep
from .sweeps.table import SweepTable as SweepTable
from .tiered import TieredSimulation as TieredSimulation
from .tiered import simulate_tiers as simulate_tiers
from .tiers import Tier as Tier
from .tuning import Tuned as Tuned
from .tuning import tune as tune
