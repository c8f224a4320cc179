from .signature import Signature as Signature
from .signature import sign as sign
from .signature import signer as signer
from .signature import verify as verify
