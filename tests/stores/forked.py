"""Processes that tests fork: what one does and how it ended, and one that stays until it is over."""

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def fork() -> int:
    """Fork although there may be threads, which is what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # CPython 3.12 and later
        return os.fork()


def fork_in_c() -> int:
    """Fork as uWSGI does, without telling Python."""
    return int(ctypes.PyDLL(None).fork())


def actor(act: Callable[[int], object], fork: Callable[[], int] = fork) -> tuple[int, int]:
    """Fork a process that acts on the writing end of a pipe; return its id and the reading end."""
    reading, writing = os.pipe()
    pid = fork()
    if not pid:
        code = 1
        try:
            os.close(reading)
            act(writing)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(writing)
    return pid, reading


def outcome(pid: int, reading: int) -> tuple[bytes, int]:
    """Wait for an actor to end; return what it wrote and its exit code."""
    with open(reading, "rb") as pipe:
        written = pipe.read()
    return written, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def child(act: Callable[[], object], ends_by: signal.Signals = signal.SIGCONT) -> Iterator[int]:
    """Fork a process that does something, sends itself the signal `ends_by`, and stays where it is until the end."""

    def stay(writing: int) -> None:
        kept = act()  # a transaction ends when nobody holds it
        os.write(writing, b"x")
        os.kill(os.getpid(), ends_by)
        signal.pause()
        del kept

    pid, reading = actor(stay)
    try:
        assert os.read(reading, 1) == b"x"
        if ends_by in (signal.SIGSTOP, signal.SIGKILL):
            os.waitpid(pid, os.WUNTRACED)
        yield pid
    finally:
        os.close(reading)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
