"""What the kernel knows of a connection."""

from __future__ import annotations

import fcntl
import struct
import termios


def unacknowledged(descriptor: int) -> int:
    """Return the bytes that the other side of a TCP connection has not taken yet (`SIOCOUTQ`).

    0 where the kernel does not say it, as of a closed one (-1); see tcp(7).
    """
    try:
        answer = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return 0
    return int(struct.unpack("i", answer)[0])
