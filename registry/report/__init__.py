"""The report of a composition: its figures, and the page that shows them."""

from registry.report.figures import Figures
from registry.report.page import page

__all__ = ["Figures", "page"]
