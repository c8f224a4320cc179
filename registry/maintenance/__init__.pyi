from .garbage import Garbage as Garbage
from .garbage import collect_garbage as collect_garbage
from .garbage import follow_opt_outs as follow_opt_outs
from .verify import Verification as Verification
from .verify import verify as verify
