"""The public names of the room and where each lives; `__init__.py` imports one when it is first used."""

from .html_page import write_report as write_report
