from .cluster import Cluster as Cluster
from .cluster import connect as connect
from .step import Finished as Finished
from .step import Step as Step
from .step import Task as Task
