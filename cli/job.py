"""`reg` as a job of the web pages: an interrupt stops it once, and it ends with the server that started it.

The server holds the other end of the standard input. When the server is gone, however it ended, the input ends, and
that interrupts the command as Ctrl-C does.
"""

import os
import signal
import sys
import threading
from types import FrameType

_INTERRUPTED = 130  # exit status after an interrupt, as shells have it


def main() -> None:
    """Run the command of the arguments."""
    signal.signal(signal.SIGINT, _interrupt_once)  # the server may have been started with interrupts ignored
    try:
        threading.Thread(target=_interrupt_with_server, daemon=True).start()
        from cli.main import main as reg  # slow, and may be interrupted too

        reg(prog_name="reg")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Interrupt the command; what it then cleans up is not interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _interrupt_with_server() -> None:
    while os.read(0, 1024):
        pass
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGINT)  # another thread would not wake it from a wait


if __name__ == "__main__":
    main()
