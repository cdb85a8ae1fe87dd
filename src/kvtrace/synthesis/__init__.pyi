"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .attach_fitting import fit as fit
from .attach_model import Model as Model
from .fidelity import Fidelity as Fidelity
from .knobs import Knobs as Knobs
from .mixture import Mixture as Mixture
from .mixture import mix as mix
from .model_files import model_of as model_of
from .rate_profile import RateProfile as RateProfile
from .rate_profile import read_rates as read_rates
from .sampling import Synthesized as Synthesized
from .sampling import check_fidelity as check_fidelity
from .sampling import sample as sample
from .sampling import write_sample as write_sample
from .session_fitting import fit_sessions as fit_sessions
from .session_model import SessionModel as SessionModel
from .tree import Tree as Tree
from .tree import fit_tree as fit_tree
