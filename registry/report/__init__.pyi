from .build import build_report as build_report
from .data import ReportData as ReportData
from .frame import Frame as Frame
from .page import page as page
from .report_source import check_source as check_source
