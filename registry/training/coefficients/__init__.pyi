from .fit_coefficients import Fitted as Fitted
from .fit_coefficients import fit_coefficients as fit_coefficients
from .fit_settings import FitSettings as FitSettings
