from .gates import anchored as anchored
from .gates import domain_embedding as domain_embedding
from .gates import random as random
from .gates import ridge as ridge
