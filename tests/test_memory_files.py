"""The disk in memory behaves like the real one, and forgets what a power cut takes."""

from __future__ import annotations

import errno
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from memory_files import MemoryFiles, Stopped

from squilla_files.errors import SquillaFilesError
from squilla_files.files import Files

A_FILE = b"0123456789"


@pytest.fixture
def disk() -> MemoryFiles:
    return MemoryFiles()


def write(files: Files, path: str, data: bytes, *, sync: bool = False) -> None:
    fd = files.create(path)
    files.write(fd, data)
    if sync:
        files.sync(fd)
    files.close(fd)


def step(files: Files, root: str, rng: random.Random) -> object:
    """One random operation, and what came of it: a result or the kind of error."""

    def path() -> str:
        return root + rng.choice(["/a", "/b", "/d", "/d/a", "/d/b", "/e", "/e/a", "/d/e"])

    def append() -> object:
        fd = files.open_append(path())
        try:
            cut = rng.randrange(3) == 0
            files.truncate(fd, rng.randrange(20)) if cut else files.write(fd, rng.randbytes(9))
            return files.pread(fd, 12, 3), files.fstat(fd).st_size
        finally:
            files.close(fd)

    def read() -> object:
        fd = files.open_read(path())
        try:
            with pytest.raises(OSError, match=r".*") as refused:
                files.write(fd, b"x")
            return refused.value.errno, files.pread(fd, 100, 0)
        finally:
            files.close(fd)

    operations: list[Callable[[], object]] = [
        append,
        append,
        read,
        lambda: files.close(files.create(path())),
        lambda: files.mkdir(path()),
        lambda: files.rename(path(), path()),
        lambda: files.unlink(path()),
        lambda: files.rmdir(path()),
        lambda: files.scan(path()),
        lambda: files.scan(root),
        lambda: files.read_file(path()),
        lambda: stat.S_IFMT(files.stat(path()).st_mode),
        lambda: files.ensure_dir(path()),
        lambda: files.replace_file(path(), b"whole"),
        lambda: files.remove_tree(path()),
    ]
    try:
        return rng.choice(operations)()
    except SquillaFilesError as error:
        return type(error)
    except OSError as error:
        # Which of several reasons to refuse comes first differs between systems.
        return type(error) if error.errno in {errno.ENOENT, errno.EEXIST} else OSError


@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_of_calls_has_the_outcome_that_it_has_on_a_real_disk(
    tmp_path: Path, disk: MemoryFiles, seed: int
) -> None:
    ours, real = random.Random(seed), random.Random(seed)
    disk.mkdir("/root")
    for _ in range(150):
        assert step(disk, "/root", ours) == step(Files(), str(tmp_path), real)
    assert disk.open_paths == []


def test_the_death_of_the_process_loses_nothing(disk: MemoryFiles) -> None:
    write(disk, "/a", A_FILE)
    assert disk.crash("all").tree() == {"/a": A_FILE}


def test_a_power_cut_takes_a_file_whose_name_was_not_synced(disk: MemoryFiles) -> None:
    write(disk, "/a", A_FILE, sync=True)
    assert disk.crash("synced").tree() == {}


def test_a_power_cut_takes_content_that_was_not_synced(disk: MemoryFiles) -> None:
    write(disk, "/a", A_FILE)
    disk.sync_dir("/")
    assert disk.crash("synced").tree() == {"/a": b""}


def test_what_was_synced_survives_a_power_cut(disk: MemoryFiles) -> None:
    write(disk, "/a", A_FILE, sync=True)
    disk.sync_dir("/")
    fd = disk.open_append("/a")
    disk.write(fd, b"tail")
    assert disk.crash("synced").tree() == {"/a": A_FILE}
    assert {disk.crash("random", random.Random(seed)).tree()["/a"][:10] for seed in range(50)} == {A_FILE}


def test_an_unsynced_tail_survives_whole_or_in_part_or_as_nul_or_not(disk: MemoryFiles) -> None:
    disk.put("/a", A_FILE)
    disk.write(disk.open_append("/a"), b"tail")
    found = {disk.crash("random", random.Random(seed)).tree()["/a"] for seed in range(200)}
    assert found == {A_FILE + tail for tail in (b"", b"t", b"ta", b"tai", b"tail", b"\0\0\0\0")}


def test_an_unsynced_cut_survives_or_not(disk: MemoryFiles) -> None:
    disk.put("/a", A_FILE)
    disk.truncate(disk.open_append("/a"), 4)
    found = {disk.crash("random", random.Random(seed)).tree()["/a"] for seed in range(50)}
    assert found == {A_FILE, b"0123"}


def test_a_rename_survives_wholly_or_not(disk: MemoryFiles) -> None:
    disk.put("/old/a", A_FILE)
    disk.put("/new/b", b"b")
    disk.rename("/old/a", "/new/b")
    before, after = {"/old/a": A_FILE, "/new/b": b"b"}, {"/new/b": A_FILE}
    found = [disk.crash("random", random.Random(seed)).tree() for seed in range(50)]
    assert before in found
    assert after in found
    assert all(tree in (before, after) for tree in found)
    disk.sync_dir("/new")
    assert disk.crash("synced").tree() == before
    disk.sync_dir("/old")
    assert disk.crash("synced").tree() == after


def test_a_later_rename_does_not_survive_an_earlier_one_of_the_same_file(disk: MemoryFiles) -> None:
    disk.put("/a", A_FILE)
    disk.rename("/a", "/b")
    disk.rename("/b", "/c")
    found = [disk.crash("random", random.Random(seed)).tree() for seed in range(100)]
    assert {name for tree in found for name in tree} == {"/a", "/b", "/c"}
    assert all(len(tree) == 1 for tree in found)


def test_a_directory_does_not_go_before_what_was_in_it(disk: MemoryFiles) -> None:
    disk.put("/d/a", A_FILE)
    disk.rename("/d/a", "/a")
    disk.rmdir("/d")
    assert all(list(disk.crash("random", random.Random(seed)).tree().values()) == [A_FILE] for seed in range(100))


def test_a_failed_sync_is_reported_once_and_its_pages_are_never_written(disk: MemoryFiles) -> None:
    disk.put("/a", A_FILE)
    fd = disk.open_append("/a")
    disk.write(fd, b"lost")
    disk.fail_at(1, "sync")
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(fd)
    disk.write(fd, b"kept")
    disk.sync(fd)
    assert disk.read_file("/a") == A_FILE + b"lostkept"
    assert disk.crash("synced").tree()["/a"] == A_FILE + b"\0\0\0\0kept"


def test_without_full_durability_nothing_is_synced() -> None:
    disk = MemoryFiles("os")
    write(disk, "/a", A_FILE, sync=True)
    disk.sync_dir("/")
    assert disk.crash("all").tree() == {"/a": A_FILE}
    assert disk.crash("synced").tree() == {}


def test_a_lock_excludes_other_descriptors_until_it_is_released_closed_or_its_process_dies(disk: MemoryFiles) -> None:
    disk.put("/lock", b"")
    one, two, other = disk.open_append("/lock"), disk.open_append("/lock"), disk.another_process()
    three = other.open_append("/lock")
    assert disk.lock(one)
    assert disk.lock(one)
    assert not disk.lock(two)
    assert not other.lock(three)
    disk.close(one)
    assert disk.lock(two)
    disk.fail_at(1, "stop")
    with pytest.raises(Stopped):
        disk.stat("/lock")
    assert other.lock(three)


@pytest.fixture(params=["memory", "real"])
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FaultyFiles, str]:
    if request.param == "real":
        return FaultyFiles(), str(tmp_path)
    disk = MemoryFiles()
    disk.mkdir("/root")
    return disk, "/root"


def test_a_stopped_process_does_nothing_any_more(faulty: tuple[FaultyFiles, str]) -> None:
    files, root = faulty
    fd = files.create(root + "/a")
    files.fail_at(2, "stop")
    files.write(fd, b"done")
    for _ in range(2):
        with pytest.raises(Stopped):
            files.write(fd, b"not done")
    with pytest.raises(Stopped):
        files.scan(root)
    assert files.open_paths == []


def test_a_torn_write_leaves_its_first_half(faulty: tuple[FaultyFiles, str]) -> None:
    files, root = faulty
    fd = files.create(root + "/a")
    files.fail_at(1, "torn")
    with pytest.raises(Stopped):
        files.write(fd, b"abcdef")
    left = files.crash("all").tree() if isinstance(files, MemoryFiles) else {"": Path(root, "a").read_bytes()}
    assert list(left.values()) == [b"abc"]


def test_an_error_comes_once_or_for_every_later_call_of_the_primitive(faulty: tuple[FaultyFiles, str]) -> None:
    files, root = faulty
    files.fail_at(2, errno.EACCES)
    files.stat(root)
    with pytest.raises(PermissionError):
        files.stat(root)
    files.stat(root)
    files.fail_at(1, errno.EIO, sticky=True, matching=lambda call: call.name == "scan" and call.path == root)
    files.stat(root)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            files.scan(root)
    files.heal()
    assert files.scan(root) == []


def test_a_full_disk_takes_half_of_a_write_and_then_refuses(faulty: tuple[FaultyFiles, str]) -> None:
    files, root = faulty
    fd = files.create(root + "/a")
    files.fail_at(1, "short")
    assert files.fstat(fd).st_size == 0
    assert files.write(fd, b"abcdef") == 3
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            files.write(fd, b"def")
    assert files.read_file(root + "/a") == b"abc"
    files.close(fd)


def test_calls_are_logged_with_the_path_behind_a_descriptor(faulty: tuple[FaultyFiles, str]) -> None:
    files, root = faulty
    files.calls.clear()
    fd = files.create(root + "/a")
    files.write(fd, b"x")
    assert files.open_paths == [root + "/a"]
    files.close(fd)
    assert [(call.name, call.path) for call in files.calls] == [(n, root + "/a") for n in ("create", "write", "close")]
