"""Advisory locks on open files and folders, released by the system when their process dies."""

import errno
import fcntl


def try_lock(descriptor: int, *, required: bool = True) -> bool:
    """Lock an open file or folder without waiting, and tell whether no other process holds it.

    Args:
        descriptor: of the open file or folder.
        required: raise where the file system has no locks; False goes without one there, and returns True.

    Raises:
        OSError: the file system has no locks, and one is required.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if required:
            raise
    return True
