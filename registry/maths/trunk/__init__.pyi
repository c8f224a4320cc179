from .combination import averaged as averaged
from .combination import of_base as of_base
from .regmean import regression_mean as regression_mean
from .regmean import regression_means as regression_means
from .task_vectors import dare as dare
from .task_vectors import task_arithmetic as task_arithmetic
from .task_vectors import ties as ties
