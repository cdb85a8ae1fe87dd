"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .litellm_callback import LiteLLMCallback as LiteLLMCallback
from .recorder import Recorder as Recorder
from .recorder import RecorderCounts as RecorderCounts
from .watcher import Watcher as Watcher
