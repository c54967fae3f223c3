"""One private directory and the few things done in it. Nothing outside it is ever opened, read or written.

Every access goes by a name relative to an open descriptor of the directory and follows no link, so that a directory
that is swapped for another one in the middle of an access leads nowhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stalloc_accel.errors import PlanFileError, describe

LOCK_NAME = ".lock"
_TEMPORARY = re.compile(r"\.[0-9a-z.]{1,64}\.tmp", re.ASCII)
# A write takes seconds. What is older was left by a process that was killed.
_TEMPORARY_LIFE_S = 3600.0
_WRITE_CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class FileStatus:
    name: str
    size_bytes: int
    used_at: float  # seconds since the epoch; reading a plan counts as use


class CacheDirectory:
    """The directory `path`. It must be a real directory, of the user who runs, and not writable for others."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def opened(self, create: bool = False) -> Iterator[int]:
        """A descriptor of the directory, checked. Raises PlanFileError, or FileNotFoundError where there is none."""
        if create:
            self._make()
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            rule = "must be a directory and no link" if self.path.is_symlink() else f"cannot be opened ({_reason(error)})"
            raise self._refusal(rule) from error
        try:
            self._check(os.fstat(descriptor))
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, name: str, max_bytes: int, num_bytes: int | None = None) -> bytes | None:
        """A plain file of ours, or its first `num_bytes`; None where there is none.

        Raises PlanFileError for anything else, and for a file of more than `max_bytes` before reading it.
        """
        try:
            with self.opened() as directory:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
                    status = os.fstat(file.fileno())
                    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                        raise self._refusal("must hold plain files of this user", name)
                    if status.st_size > max_bytes:
                        raise self._refusal(f"must hold files of at most {max_bytes} bytes", name)
                    return file.read(status.st_size if num_bytes is None else min(status.st_size, num_bytes))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refusal(f"cannot be read ({_reason(error)})", name) from error

    def write(self, name: str, data: bytes, under_lock: Callable[[int], None], lock_timeout_s: float) -> None:
        """Puts a file in place, whole or not at all, and then calls `under_lock` with the directory's descriptor.

        The bytes reach the disk under a temporary name before the lock is taken, so that ranks wait for each other's
        renames and not for each other's disks. Raises OSError (disk full), PlanFileError, or filelock.Timeout.
        """
        with self.opened(create=True) as directory:
            temporary = f".{os.getpid()}.{secrets.token_hex(8)}.tmp"
            try:
                _write_synced(directory, temporary, data)
                with self.locked(lock_timeout_s):
                    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                    os.fsync(directory)
                    _remove_abandoned(directory)
                    under_lock(directory)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise

    @contextlib.contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """The lock between processes. It dies with its process; readers need none, since files appear whole."""
        import filelock

        with filelock.FileLock(self.path / LOCK_NAME, timeout=timeout_s, mode=0o600):
            yield

    def _make(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            pass  # what it is, is checked when it is opened
        except (OSError, ValueError) as error:
            raise self._refusal(f"cannot be made ({_reason(error)})") from error

    def _check(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid():
            raise self._refusal(f"must belong to user {os.geteuid()}, not {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise self._refusal(f"must not be writable for others, mode is {stat.S_IMODE(status.st_mode):o}")

    def _refusal(self, rule: str, name: str = "") -> PlanFileError:
        remedy = "Name a directory of your own with mode 0700 in cache_dir or STALLOC_CACHE_DIR."
        return PlanFileError(describe("plan store", "cache_dir", str(self.path / name), rule, remedy))


def files_in(directory: int, pattern: re.Pattern[str]) -> list[FileStatus]:
    """The plain files whose whole name matches, the least recently used first."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process may remove it at any time
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append(FileStatus(entry.name, status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: (file.used_at, file.name))


def _write_synced(directory: int, name: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view[:_WRITE_CHUNK_BYTES]):]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(directory: int) -> None:
    oldest = time.time() - _TEMPORARY_LIFE_S
    for file in files_in(directory, _TEMPORARY):
        if file.used_at < oldest:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name, dir_fd=directory)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
