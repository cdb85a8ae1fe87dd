"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .prompts import hashes_to_texts as hashes_to_texts
from .prompts import texts_to_hashes as texts_to_hashes
from .prompts.writing import write_prompts as write_prompts
from .tokenizers import Tokenizer as Tokenizer
