from .run import DemoResult as DemoResult
from .run import run_demo as run_demo
