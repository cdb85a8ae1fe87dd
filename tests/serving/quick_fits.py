"""Fits of a calibration that end early, for facts that do not depend on how well they fit."""

import contextlib
import os
from unittest.mock import patch

from kvtrace.serving.calibration import calibration, fitting


@contextlib.contextmanager
def quick_fits(*, forms=tuple(calibration.FORMS), worth=True):
    """Calibrations fit some forms, and the worth of the terms if it is wanted, each from one point and not to the end.

    With KVTRACE_THOROUGH=1 (`make fuzz`) they fit all of it as any calibration does.
    """
    if os.environ.get("KVTRACE_THOROUGH") == "1":
        yield
        return

    def fit(residuals, size, *, points, **_):
        return fitting.fit(residuals, size, points=points[-1:], starts=1)

    with (
        patch.object(calibration, "fit", fit),
        patch.object(calibration, "FORMS", {form: calibration.FORMS[form] for form in forms}),
        patch.object(calibration, "_worth", calibration._worth if worth else lambda *_: {}),
        patch.object(fitting, "ROUNDS", 4),
        patch.object(fitting, "SIMPLEXES", ((fitting.FINE, 40),)),
    ):
        yield
