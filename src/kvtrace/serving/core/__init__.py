"""The compiled event loop of serving: routers, many instances, time."""

from ..._base.built import require_built

require_built(__file__)
