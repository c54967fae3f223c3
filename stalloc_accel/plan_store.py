"""The plans of earlier runs, one file a key, and the launches that led to them.

In the store's directory: `<digest>.plan.safetensors` for each key (docs/plan-file.md) and `<digest>.launch.json` for
each launch, which names the key that the launch ended up with. Whatever is wrong with a file or with the directory is
told once and never stops a run: get() then finds nothing and put() keeps nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from stalloc_accel import __version__, plan_file
from stalloc_accel.cache_directory import CacheDirectory, FileStatus, files_in
from stalloc_accel.errors import PlanFileError, describe
from stalloc_accel.fingerprint.key import DIGEST_LENGTH, DIGEST_PATTERN, Key, canonical_json
from stalloc_accel.plan_file import StoredPlan

MAX_STORE_BYTES = 2 << 30
MAX_LINKS = 4096
MAX_LINK_BYTES = 256 << 10
LOCK_TIMEOUT_S = 20.0
LINK_FORMAT = "stalloc-launch"

_PLAN_SUFFIX, _LINK_SUFFIX = ".plan.safetensors", ".launch.json"
_PLAN_NAME = re.compile(DIGEST_PATTERN.pattern + re.escape(_PLAN_SUFFIX), re.ASCII)
_LINK_NAME = re.compile(DIGEST_PATTERN.pattern + re.escape(_LINK_SUFFIX), re.ASCII)
_LOGGER = logging.getLogger("stalloc_accel.store")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A plan file as a listing shows it: its header is checked, its arrays are not."""

    digest: str
    size_bytes: int
    used_at: float
    key: Key | None
    facts: Mapping[str, Any]
    problem: str | None


class PlanStore:
    """Plans in `cache_dir`. `mode` is "readwrite", "readonly" or "off". Construction touches no file."""

    def __init__(self, cache_dir: str | os.PathLike[str], mode: str = "readwrite", *,
                 max_bytes: int = MAX_STORE_BYTES, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        # Made absolute at once: a script may change its working directory.
        self.path = Path(os.path.abspath(Path(cache_dir).expanduser()))
        self.mode = mode
        self._directory = CacheDirectory(self.path)
        self._max_bytes = max_bytes
        self._lock_timeout_s = lock_timeout_s
        self._told: set[str] = set()

    def get(self, key: Key) -> StoredPlan | None:
        """The plan of `key`, checked by the engine; None where there is none that can be used."""
        if self.mode == "off":
            return None
        return self._guarded(lambda: self._load(key.digest))

    def put(self, key: Key, plan: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
        """Keeps a plan in the place of an older one of the same key. False where it could not be kept.

        The file's facts are those given, and when and by which version it was made, its slots and its bytes.
        """
        if self.mode != "readwrite":
            return False
        name = key.digest + _PLAN_SUFFIX

        def write() -> bool:
            data = plan_file.encode(key, plan, {**_figures_of(plan), **facts})
            self._directory.write(name, data, lambda directory: self._evict(directory, name), self._lock_timeout_s)
            return True

        return bool(self._guarded(write))

    def link(self, launch_key: Key, key: Key) -> bool:
        """Notes that this launch ended up with `key`, for the next launch of the same kind."""
        if self.mode != "readwrite":
            return False
        name = launch_key.digest + _LINK_SUFFIX

        def write() -> bool:
            text = canonical_json({"format": LINK_FORMAT, "format_version": plan_file.FORMAT_VERSION,
                                   "launch": dict(launch_key.fields), "key": key.digest})
            if len(text) > MAX_LINK_BYTES:
                raise PlanFileError(describe("plan store", "launch bytes", len(text), f"must be at most {MAX_LINK_BYTES}",
                                             "The next run profiles until its model is known."))
            self._directory.write(name, text.encode(), lambda directory: self._evict(directory, name),
                                  self._lock_timeout_s)
            return True

        return bool(self._guarded(write))

    def candidate(self, launch_key: Key) -> tuple[Key, StoredPlan] | None:
        """The plan that the last launch of this kind ended up with. The model's own key has to confirm it."""
        if self.mode == "off":
            return None

        def find() -> tuple[Key, StoredPlan] | None:
            digest = self._linked(launch_key.digest)
            stored = None if digest is None else self._load(digest)
            if stored is None:
                return None
            _check_same_software(launch_key, stored.key)
            return stored.key, stored

        return self._guarded(find)

    def entries(self) -> list[Entry]:
        """All plans, the last used first. Raises PlanFileError where the directory must not be used."""
        return [self._entry(file) for file in reversed(self._files(_PLAN_NAME))]

    def launches(self) -> dict[str, str]:
        """Launch digest -> key digest, of the links that can be read."""
        found = {}
        for file in self._files(_LINK_NAME):
            with contextlib.suppress(PlanFileError):
                digest = self._linked(file.name[:DIGEST_LENGTH])
                if digest is not None:
                    found[file.name[:DIGEST_LENGTH]] = digest
        return found

    def load(self, digest: str) -> StoredPlan:
        """As get(), for people: raises PlanFileError with what is wrong, or where there is no such plan."""
        stored = self._load(digest)
        if stored is None:
            raise PlanFileError(describe("plan store", "key", digest, "has no plan", "List them with `stalloc cache list`."))
        return stored

    def launch(self, digest: str) -> Key:
        """The key of a launch that was noted. Raises PlanFileError where it cannot be read."""
        document = self._link_document(digest)
        if document is None:
            raise PlanFileError(describe("plan store", "launch", digest, "is not known", "List them with `stalloc cache list`."))
        return plan_file.key_from(document["launch"], digest)

    def remove(self, digest: str) -> bool:
        """Removes a plan and the links to it. Raises PlanFileError; False where there was nothing."""
        if not DIGEST_PATTERN.fullmatch(digest):
            return False
        links = [launch for launch, key in self.launches().items() if key == digest]
        return self._unlink([digest + _PLAN_SUFFIX, *(launch + _LINK_SUFFIX for launch in links)]) > 0

    def clear(self) -> int:
        """Removes all plans and links, also those that cannot be read. Returns how many plans there were."""
        plans = [file.name for file in self._files(_PLAN_NAME)]
        self._unlink(plans + [file.name for file in self._files(_LINK_NAME)])
        return len(plans)

    def _load(self, digest: str) -> StoredPlan | None:
        name = digest + _PLAN_SUFFIX
        data = self._directory.read(name, plan_file.MAX_FILE_BYTES)
        if data is None:
            return None
        with self._naming(name):
            stored = plan_file.decode(data, digest)
        if self.mode == "readwrite":
            self._touch(name)
        return stored

    def _touch(self, name: str) -> None:
        # The time of last use decides what is evicted first; a disk that is read-only evicts nothing anyway.
        with contextlib.suppress(OSError), self._directory.opened() as directory:
            os.utime(name, dir_fd=directory, follow_symlinks=False)

    def _linked(self, launch_digest: str) -> str | None:
        document = self._link_document(launch_digest)
        if document is None:
            return None
        if self.mode == "readwrite":
            self._touch(launch_digest + _LINK_SUFFIX)
        return document["key"]

    def _link_document(self, launch_digest: str) -> dict[str, Any] | None:
        name = launch_digest + _LINK_SUFFIX
        data = self._directory.read(name, MAX_LINK_BYTES)
        if data is None:
            return None
        with self._naming(name):
            document = plan_file.parse_object(data, "launch file")
            if (document.get("format"), document.get("format_version")) != (LINK_FORMAT, plan_file.FORMAT_VERSION):
                raise PlanFileError(describe("launch file", "format", document.get("format"), f"must be {LINK_FORMAT}"))
            digest = document.get("key")
            if not isinstance(digest, str) or not DIGEST_PATTERN.fullmatch(digest):
                raise PlanFileError(describe("launch file", "key", digest, "must be a key's digest"))
            plan_file.key_from(document.get("launch"), launch_digest)
        return document

    @contextlib.contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except PlanFileError as error:
            raise PlanFileError(f"{self.path / name}: {error}") from error

    def _entry(self, file: FileStatus) -> Entry:
        digest = file.name[:DIGEST_LENGTH]
        key, facts, problem = None, {}, None
        try:
            data = self._directory.read(file.name, plan_file.MAX_FILE_BYTES, plan_file.MAX_HEADER_BYTES + 8)
            header = plan_file.decode_header(data or b"", file.size_bytes)
            key, facts = header.key, header.facts
            if key.digest != digest:
                problem = f"holds the plan of another key, {key.digest}"
        except PlanFileError as error:
            problem = str(error)
        return Entry(digest, file.size_bytes, file.used_at, key, facts, problem)

    def _files(self, pattern: re.Pattern[str]) -> list[FileStatus]:
        try:
            with self._directory.opened() as directory:
                return files_in(directory, pattern)
        except FileNotFoundError:
            return []

    def _unlink(self, names: list[str]) -> int:
        num_removed = 0
        try:
            with self._directory.opened() as directory, self._directory.locked(self._lock_timeout_s):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
                        num_removed += 1
        except FileNotFoundError:
            pass
        return num_removed

    def _evict(self, directory: int, written: str) -> None:
        """Keeps the directory within its bounds; called under the lock. What was just written always stays."""
        links = files_in(directory, _LINK_NAME)
        for link in links[:max(0, len(links) - MAX_LINKS)]:
            if link.name != written:
                _unlink_quietly(directory, link.name)
        plans = files_in(directory, _PLAN_NAME)
        excess = sum(file.size_bytes for file in plans) - self._max_bytes
        for plan in plans:
            if excess <= 0:
                break
            if plan.name != written:
                _unlink_quietly(directory, plan.name)
                excess -= plan.size_bytes

    def _guarded(self, action: Callable[[], Result]) -> Result | None:
        """Runs an access of a training run: what goes wrong is told once, and the run goes on without it."""
        try:
            return action()
        except PlanFileError as error:
            self._tell(str(error))
        except (OSError, NotImplementedError) as error:  # filelock.Timeout is an OSError
            self._tell(describe("plan store", "cache_dir", str(self.path), _reason(error),
                                "The plan is not kept; training goes on."))
        return None

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _LOGGER.warning("%s", text)


def _figures_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {"created": int(time.time()), "stalloc": __version__, "slots": len(plan["slot_size"]),
            "arena_bytes": int(sum(plan["arena_bytes"])), "lower_bound_bytes": int(sum(plan["lower_bound_bytes"]))}


def _check_same_software(launch_key: Key, key: Key) -> None:
    """A candidate is served before its model is known, so what both keys know of must agree."""
    for name, value in launch_key.fields.items():
        if name.startswith(("version.", "device.")) and name in key.fields and key.fields[name] != value:
            raise PlanFileError(describe("plan store", name, key.fields[name], f"must be {value!r} in this run",
                                         "The plan is ignored; a new one is made."))


def _unlink_quietly(directory: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _reason(error: Exception) -> str:
    import filelock

    if isinstance(error, filelock.Timeout):
        return "is locked by another process"
    return f"cannot be written ({getattr(error, 'strerror', None) or error})"
