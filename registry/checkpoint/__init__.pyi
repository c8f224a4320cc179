from .checkpoint import Checkpoint as Checkpoint
from .checkpoint import HashedCheckpoint as HashedCheckpoint
from .checkpoint import hash_checkpoint as hash_checkpoint
from .model_files import COPIED_FILES as COPIED_FILES
from .model_files import read_files as read_files
from .tokenizer import tokenizer_digest as tokenizer_digest
from .version_files import TrainingRecord as TrainingRecord
from .version_files import readable_training as readable_training
