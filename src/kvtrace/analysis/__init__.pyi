"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .arrivals import Arrivals as Arrivals
from .block_sizes import BlockSizeHits as BlockSizeHits
from .block_sizes import by_block_size as by_block_size
from .capacities import parse_capacities as parse_capacities
from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .curves import CurvePoint as CurvePoint
from .curves import HitCurve as HitCurve
from .curves import SampledCurve as SampledCurve
from .curves import hit_curve as hit_curve
from .delivered import Delivered as Delivered
from .delivered import delivered_hits as delivered_hits
from .distribution import Distribution as Distribution
from .reuse import Popularity as Popularity
from .sessions import SessionLinks as SessionLinks
from .sessions import infer_sessions as infer_sessions
from .summary import Basics as Basics
from .summary import Summary as Summary
from .summary import analyze as analyze
from .summary import basics as basics
