from .diagnose import CHECKS as CHECKS
from .diagnose import Check as Check
from .diagnose import diagnose as diagnose
from .finding import Diagnosis as Diagnosis
from .finding import Finding as Finding
