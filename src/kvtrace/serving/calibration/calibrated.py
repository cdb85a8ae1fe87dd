"""A roofline whose terms are multiples of the roofline's own, as a calibration found them for the same kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..hardware.links import Link
from ..hardware.roofline import Roofline
from ..roofline_cost import roofline_cost
from ..simulation import StepCost

FORMS = {  # name -> its terms; "max" takes the time of attention within that of the matrices, the others beside it
    "sum": ("token_s", "step_s", "overhead_s", "attention_pair_s", "attention_read_s"),
    "sum-request": ("token_s", "step_s", "overhead_s", "request_s", "attention_pair_s", "attention_read_s"),
    "max": ("token_s", "pair_s", "step_s", "read_s", "overhead_s"),
}
SIBLINGS = {"expert_token_s": "token_s", "expert_step_s": "step_s"}  # an unknown share of the peaks is that of another
ATTENTION = ("pair_s", "read_s", "attention_pair_s", "attention_read_s")
EXTRAS = (*SIBLINGS, "exchange_s")  # terms of any form where the model has experts, or the instance several GPUs
NO_TIME = Link(1e30, 0.0)
# Attention reads 53 % of the peak at 256 tokens a request and 66 % at 512 (docs/serving/models.md): as if each
# request had this many more tokens.
REQUEST_TOKENS = 125


def start_terms(roofline: Roofline) -> dict[str, float]:
    """The roofline's value of each term, also of those that its own sum leaves out.

    >>> from kvtrace.serving.hardware import gpu
    >>> from kvtrace.serving.models import model_shape
    >>> terms = start_terms(Roofline(model_shape("llama-3.1-8b"), gpu("h100")))
    >>> [f"{terms[name]:.2g}" for name in ("token_s", "step_s", "request_s")]
    ['1.9e-05', '0.0046', '7.4e-06']
    """
    terms = asdict(roofline_cost(roofline))
    pair, read = terms["attention_pair_s"], terms["attention_read_s"]
    return terms | {"pair_s": pair, "read_s": read, "request_s": terms["request_s"] + REQUEST_TOKENS * read}


def terms_of(form: str, start: Mapping[str, float]) -> tuple[str, ...]:
    """The terms of a form that have a value, by those of the roofline."""
    return tuple(name for name in (*FORMS[form], *EXTRAS) if start[name] > 0)


def exchange_terms(roofline: Roofline) -> dict[str, float]:
    """The part of each term that the GPUs of an instance take to exchange activations."""
    free = start_terms(replace(roofline, link=NO_TIME))
    return {name: seconds - free[name] for name, seconds in start_terms(roofline).items()}


def window_terms(roofline: Roofline, multiples: Mapping[str, float]) -> dict[str, float]:
    """The roofline's terms of layers with windows, with the multiples of the other layers' attention."""
    pair = multiples.get("attention_pair_s", multiples.get("pair_s", 1.0))
    read = multiples.get("attention_read_s", multiples.get("read_s", 1.0))
    return {
        "window_read_s": read * roofline.seconds_per_window_token,
        "window_pair_s": pair * roofline.seconds_per_window_pair,
        "window_tokens": roofline.model.window_tokens,
    }


@dataclass(frozen=True)
class CalibratedRoofline(Roofline):
    """A model on GPUs whose terms are multiples of the roofline's.

    >>> from kvtrace.serving.hardware import gpu
    >>> from kvtrace.serving.models import model_shape
    >>> line = CalibratedRoofline(model_shape("llama-3.1-8b"), gpu("h100"), multiples={"token_s": 2.0})
    >>> [one.seconds_per_token / line.plain.seconds_per_token for one in (line, line.plain)]
    [2.0, 1.0]
    """

    form: str = "sum"
    multiples: Mapping[str, float] = field(default_factory=dict)  # term -> multiple; 1 where it has none
    source: str = ""  # what was measured, for people

    @property
    def plain(self) -> Roofline:
        """The same model and GPUs, not calibrated."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(Roofline)}
        return Roofline(**values)

    @property
    def cost(self) -> StepCost:
        """The time of a step."""
        free, exchange = start_terms(replace(self.plain, link=NO_TIME)), exchange_terms(self.plain)
        names = (*FORMS[self.form], *SIBLINGS)
        terms = {name: self._multiple(name) * free[name] + exchange[name] for name in names}
        if "request_s" in self.multiples and "request_s" not in FORMS[self.form]:  # states that were not measured
            terms["request_s"] = self.multiples["request_s"] * self.plain.seconds_per_request
        terms |= window_terms(self.plain, self.multiples)
        exchange_s = self._multiple("exchange_s") * exchange["exchange_s"]
        return StepCost(**terms, exchange_s=exchange_s, expert_share=free["expert_share"])

    @property
    def seconds_per_dense_token(self) -> float:
        """As in the roofline, calibrated."""
        return self._multiple("token_s") * super().seconds_per_dense_token

    @property
    def seconds_per_expert_token(self) -> float:
        """As in the roofline, calibrated."""
        return self._multiple("expert_token_s") * super().seconds_per_expert_token

    @property
    def seconds_per_pair(self) -> float:
        """As in the roofline, calibrated."""
        return self._multiple("pair_s" if self.form == "max" else "attention_pair_s") * super().seconds_per_pair

    @property
    def seconds_per_window_pair(self) -> float:
        """As in the roofline, calibrated."""
        return window_terms(self.plain, self.multiples)["window_pair_s"]

    @property
    def seconds_per_window_token(self) -> float:
        """As in the roofline, calibrated."""
        return window_terms(self.plain, self.multiples)["window_read_s"]

    def _multiple(self, term: str) -> float:
        return self.multiples.get(term, self.multiples.get(SIBLINGS.get(term, ""), 1.0))
