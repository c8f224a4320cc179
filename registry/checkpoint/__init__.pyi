from .checkpoint import Checkpoint as Checkpoint
from .hashed import HashedCheckpoint as HashedCheckpoint
from .hashed import hash_checkpoint as hash_checkpoint
from .model_files import COPIED_FILES as COPIED_FILES
from .model_files import read_files as read_files
from .tokenizer import tokenizer_digest as tokenizer_digest
from .training_record import TrainingRecord as TrainingRecord
from .training_record import readable_training as readable_training
