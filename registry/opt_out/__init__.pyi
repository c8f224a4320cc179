from .opted_out import opted_out_members as opted_out_members
from .perform import opt_out as opt_out
from .receipt_paths import check_new_receipt as check_new_receipt
from .receipt_paths import check_receipt as check_receipt
from .verify_receipt import ReceiptCheck as ReceiptCheck
from .verify_receipt import verify_receipt as verify_receipt
from .withdraw import Heirs as Heirs
from .withdraw import OptOut as OptOut
