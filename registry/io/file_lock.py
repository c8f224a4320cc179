"""Advisory locks on open files and folders, which the system releases when their process dies."""

import errno
import fcntl


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder without waiting; return False if another process holds the lock.

    On a file system without locks nothing is locked, and the result is True.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
