"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .converting import Converted as Converted
from .converting import convert_file as convert_file
from .dataset import Dataset as Dataset
from .dataset import open_dataset as open_dataset
from .lazy import open_trace as open_trace
from .reading import read as read
from .violations import Violation as Violation
from .violations import check as check
from .writing import write as write
