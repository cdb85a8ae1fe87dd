"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .encoding_options import EncodingOptions as EncodingOptions
from .keys import Key as Key
from .keys import load_key as load_key
from .linting.findings import LintReport as LintReport
from .linting.linter import lint as lint
from .pipeline import anonymize as anonymize
from .pipeline_tasks import AnonymizedDataset as AnonymizedDataset
from .pipeline_tasks import anonymize_dataset as anonymize_dataset
from .row_counts import Progress as Progress
