"""Advisory locks on open files and folders, released by the system when their process dies."""

import errno
import fcntl


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder without waiting, and tell whether no other process holds it.

    On a file system without locks nothing is locked and True is returned.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
