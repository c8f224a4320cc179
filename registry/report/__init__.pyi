from .bom import BillOfMaterials as BillOfMaterials
from .bom import write_bom as write_bom
from .build import build_report as build_report
from .data import ReportData as ReportData
from .files import check_source as check_source
from .page import Frame as Frame
from .page import page as page
