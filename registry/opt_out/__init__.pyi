from .perform import opt_out as opt_out
from .verify_receipt import ReceiptCheck as ReceiptCheck
from .verify_receipt import verify_receipt as verify_receipt
from .withdraw import Heirs as Heirs
from .withdraw import OptOut as OptOut
