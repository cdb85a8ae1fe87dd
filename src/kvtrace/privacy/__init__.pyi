"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .account import Numbered as Numbered
from .account import ReleasedTrace as ReleasedTrace
from .account import StepHits as StepHits
from .checks import audit as audit
from .checks.finding import Audit as Audit
from .checks.finding import Finding as Finding
from .contributors import Contributors as Contributors
from .data_card import write_card as write_card
from .joining import join_windows as join_windows
from .numbering.run import LocalRunner as LocalRunner
from .numbering.run import Runner as Runner
from .numbering.run import TaskOptions as TaskOptions
from .numbering.run import on_ray as on_ray
from .profiles import PROFILES as PROFILES
from .profiles import profile as profile
from .publishing import Published as Published
from .publishing import publish as publish
from .release_options import Profile as Profile
from .release_options import ReleaseOptions as ReleaseOptions
from .release_tasks import release_dataset as release_dataset
from .releases import Released as Released
from .releases import release as release
