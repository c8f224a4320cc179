from .opting_out import opt_out as opt_out
from .opting_out import opted_out_members as opted_out_members
from .verify_receipt import ReceiptCheck as ReceiptCheck
from .verify_receipt import verify_receipt as verify_receipt
from .withdraw import Heirs as Heirs
from .withdraw import OptOut as OptOut
from .withdraw import check_new_receipt as check_new_receipt
from .withdraw import check_receipt as check_receipt
