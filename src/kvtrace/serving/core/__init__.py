"""The compiled event loop of the serving simulation: routers, instances, time."""

from ..._base.process import require_built

require_built(__file__)
