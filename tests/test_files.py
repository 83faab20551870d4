"""What the disk primitives and the recipes made of them promise, on the real disk."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Literal, cast

import pytest
from faulty_files import FaultyFiles
from memory_files import MemoryFiles, Stopped

from squilla_files import layout
from squilla_files.errors import UnsafePathError
from squilla_files.files import DirEntryInfo, Files

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and links of POSIX")


@pytest.fixture(params=["posix", "windows"])
def files(request: pytest.FixtureRequest) -> Files:
    """Once as the system has it, once by the ways that Windows takes."""
    if request.param == "windows":
        return AsWindows()
    return Files()


@pytest.fixture(params=[0, 0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


class AsWindows(Files):
    """Takes the ways for Windows, and has another program hold a file for as many renames as asked for."""

    windows = True

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self.pauses: list[float] = []

    def _rename_once(self, src: str, dst: str) -> None:
        if self.held:
            self.held -= 1
            raise PermissionError(errno.EACCES, "held by a virus scanner", dst)
        super()._rename_once(src, dst)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


class Syncs(Files):
    """Counts what reaches the disk for real."""

    def __init__(self, durability: str) -> None:
        super().__init__(durability)  # type: ignore[arg-type]
        self.flushed = 0

    def _flush(self, fd: int, *, data_only: bool) -> None:
        self.flushed += 1
        super()._flush(fd, data_only=data_only)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def temporaries(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if layout.is_temporary(path.name)]


def test_writes_go_to_the_end_and_reads_to_where_they_are_told(tmp_path: Path, files: Files) -> None:
    path = str(tmp_path / "a")
    fd = files.create(path)
    assert files.write(fd, b"hello\r\n") == 7
    assert files.pread(fd, 2, 1) == b"el"
    assert files.write(fd, b"w\x1arld") == 5
    files.sync(fd)
    assert files.fstat(fd).st_size == 12
    files.close(fd)
    fd = files.open_append(path)
    assert files.pread(fd, 5, 0) == b"hello"
    files.write(fd, b"!")
    files.close(fd)
    assert files.read_file(path) == b"hello\r\nw\x1arld!"
    assert files.stat(path).st_size == 13


def test_reading_ends_where_the_file_ends(tmp_path: Path, files: Files) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    fd = files.open_read(str(tmp_path / "a"))
    assert files.pread(fd, 10, 1) == b"bc"
    assert files.pread(fd, 10, 3) == b""
    files.close(fd)


def test_a_file_is_cut_back_and_written_on(tmp_path: Path, files: Files) -> None:
    fd = files.create(str(tmp_path / "a"))
    files.write(fd, b"abcdef")
    files.truncate(fd, 2)
    files.write(fd, b"X")
    files.close(fd)
    assert (tmp_path / "a").read_bytes() == b"abX"


def test_create_never_opens_what_is_there(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    with pytest.raises(FileExistsError):
        files.create(str(path))
    assert path.read_bytes() == b"abc"


def test_open_append_never_makes_a_file(tmp_path: Path, files: Files) -> None:
    for call in (files.open_append, files.open_read, files.read_file, files.stat):
        with pytest.raises(FileNotFoundError):
            call(str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


@posix
def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    files = Files()
    files.ensure_dir(str(tmp_path / "d" / "e"))
    files.close(files.create(str(tmp_path / "d" / "f")))
    files.replace_file(str(tmp_path / "d" / "g"), b"")
    assert {name: oct(mode(tmp_path / name)) for name in ("d", "d/e", "d/f", "d/g")} == {
        "d": "0o700",
        "d/e": "0o700",
        "d/f": "0o600",
        "d/g": "0o600",
    }


@posix
def test_a_mode_that_a_copy_changed_is_taken_back(tmp_path: Path) -> None:
    files, directory, file = Files(), tmp_path / "d", tmp_path / "f"
    directory.mkdir()
    file.write_bytes(b"")
    directory.chmod(0o755)
    file.chmod(0o666)
    files.keep_private(str(directory))
    files.keep_private(str(file))
    assert (mode(directory), mode(file)) == (0o700, 0o600)


@posix
def test_a_private_file_is_left_alone(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.close(files.create(str(tmp_path / "f")))
    files.calls.clear()
    files.keep_private(str(tmp_path / "f"))
    assert [call.name for call in files.calls] == ["stat"]


@posix
@pytest.mark.parametrize("call", ["open_read", "open_append", "read_file", "check_regular", "keep_private"])
def test_a_link_is_refused_and_its_target_untouched(tmp_path: Path, files: Files, call: str) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"abc")
    target.chmod(0o644)
    link.symlink_to(target)
    with pytest.raises(UnsafePathError, match="symbolic link") as raised:
        getattr(files, call)(str(link))
    assert raised.value.path == str(link)
    assert (target.read_bytes(), mode(target)) == (b"abc", 0o644)


@posix
@pytest.mark.parametrize("call", ["open_read", "open_append", "read_file", "check_regular"])
@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_a_special_file_is_refused_without_waiting_for_it(tmp_path: Path, files: Files, call: str, kind: str) -> None:
    path = str(tmp_path / "special")
    os.mkdir(path) if kind == "directory" else os.mkfifo(path)
    before = os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else []
    with pytest.raises(UnsafePathError, match="not a regular file"):
        getattr(files, call)(path)
    assert (os.listdir("/dev/fd") if before else []) == before


@posix
def test_create_does_not_write_through_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        Files().create(str(tmp_path / "link"))
    assert not (tmp_path / "nowhere").exists()


def test_a_scan_gives_sorted_names_with_their_kind(tmp_path: Path, files: Files) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"")
    expected = [DirEntryInfo("a", False, True, False), DirEntryInfo("b", True, False, False)]
    if sys.platform != "win32":
        (tmp_path / "c").symlink_to(tmp_path / "b")
        expected.append(DirEntryInfo("c", False, False, True))
    assert files.scan(str(tmp_path)) == expected


def test_a_directory_is_made_with_those_above_it_and_their_names_synced(tmp_path: Path) -> None:
    files, deep = FaultyFiles(), tmp_path / "a" / "b"
    files.ensure_dir(str(deep))
    files.ensure_dir(str(deep))
    assert deep.is_dir()
    changed = [(call.name, Path(call.path)) for call in files.calls if call.name in {"mkdir", "sync_dir"}]
    assert changed == [
        ("sync_dir", tmp_path.parent),  # who made what is there already may have died before its name was durable
        ("mkdir", deep.parent), ("sync_dir", tmp_path), ("mkdir", deep), ("sync_dir", deep.parent),
    ]  # fmt: skip


def test_a_directory_that_another_process_makes_meanwhile_is_as_good(tmp_path: Path) -> None:
    path = tmp_path / "a"

    class Slow(Files):
        def mkdir(self, made: str) -> None:
            path.mkdir()
            super().mkdir(made)

    Slow().ensure_dir(str(path))
    assert path.is_dir()


@pytest.mark.parametrize("kind", ["file", pytest.param("link", marks=posix)])
def test_a_file_or_link_in_place_of_a_directory_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "file":
        path.write_bytes(b"")
    else:
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePathError):
        Files().ensure_dir(str(path))
    if kind == "file":
        with pytest.raises(OSError, match="Not a directory"):
            Files().ensure_dir(str(path / "below"))


def test_a_junction_is_a_link(tmp_path: Path) -> None:
    class HasJunctions(AsWindows):
        def stat(self, path: str) -> os.stat_result:
            mode = super().stat(path).st_mode
            return cast("os.stat_result", SimpleNamespace(st_mode=mode, st_reparse_tag=0xA0000003))

    with pytest.raises(UnsafePathError, match="symbolic link"):
        HasJunctions().ensure_dir(str(tmp_path))


def test_replacing_gives_the_content_under_the_name_and_leaves_no_temporary_file(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "a"
    for content in (b"one", b"", b"three"):
        files.replace_file(str(path), content)
        assert path.read_bytes() == content
    assert [entry.name for entry in files.scan(str(tmp_path))] == ["a"]


def test_replacing_syncs_the_content_before_the_name_and_the_name_at_last(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.replace_file(str(tmp_path / "a"), b"content")
    names = [call.name for call in files.calls]
    assert names == ["create", "write", "sync", "close", "rename", "sync_dir"]
    assert layout.is_temporary(os.path.basename(files.calls[0].path))
    assert os.path.dirname(files.calls[0].path) == str(tmp_path)


def test_a_write_that_takes_less_is_continued(tmp_path: Path) -> None:
    class Short(Files):
        def write(self, fd: int, data: bytes) -> int:
            return super().write(fd, data[:3])

    Short().replace_file(str(tmp_path / "a"), b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_write_that_takes_nothing_is_an_error_and_not_a_loop(tmp_path: Path) -> None:
    class Stuck(Files):
        def write(self, fd: int, data: bytes) -> int:
            return 0

    with pytest.raises(OSError, match="took no bytes"):
        Stuck().replace_file(str(tmp_path / "a"), b"content")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_failed_replacement_leaves_the_old_content_or_the_new_and_no_temporary_file(
    tmp_path: Path, code: int
) -> None:
    path = tmp_path / "a"
    for k, left in enumerate([b"old", b"old", b"old", b"old", b"old", b"new"], start=1):
        path.write_bytes(b"old")
        files = FaultyFiles()
        files.fail_at(k, code)
        with pytest.raises(OSError, match=r".*") as raised:
            files.replace_file(str(path), b"new")
        assert raised.value.errno == code
        assert path.read_bytes() == left
        assert temporaries(tmp_path) == []


def test_a_full_disk_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path, files = tmp_path / "a", FaultyFiles()
    path.write_bytes(b"old")
    files.fail_at(1, "short")
    with pytest.raises(OSError, match="No space left"):
        files.replace_file(str(path), b"new content")
    assert path.read_bytes() == b"old"
    assert temporaries(tmp_path) == []
    assert files.open_paths == []


def test_the_first_error_is_raised_even_if_clearing_away_fails(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fail_at(1, errno.EACCES, matching=lambda call: call.name == "unlink")
    files.fail_at(1, "sync")
    with pytest.raises(OSError, match="Input/output error"):
        files.replace_file(str(tmp_path / "a"), b"new")
    assert len(temporaries(tmp_path)) == 1


@pytest.mark.parametrize("kind", ["stop", "torn"])
def test_after_a_crash_at_any_step_of_a_replacement_the_old_or_the_new_content_stands(
    kind: Literal["stop", "torn"],
) -> None:
    for k in range(1, 8):
        disk = MemoryFiles()
        disk.put("/a", b"old")
        disk.fail_at(k, kind)
        try:
            disk.replace_file("/a", b"new")
        except Stopped:
            allowed = [b"old", b"new"]
        else:
            allowed = [b"new"]
        left = [disk.crash("all"), disk.crash("synced"), *(disk.crash("random", Random(seed)) for seed in range(20))]
        assert [tree for tree in (crashed.tree() for crashed in left) if tree["/a"] not in allowed] == []
        assert disk.stopped == (k < 7)


def test_with_durability_os_nothing_is_synced(tmp_path: Path) -> None:
    for durability, flushes in (("full", True), ("os", False)):
        files = Syncs(durability)
        files.replace_file(str(tmp_path / "a"), b"content")
        assert (files.flushed > 0) == flushes
    with pytest.raises(FileNotFoundError):
        Files().sync_dir(str(tmp_path / "missing"))
    Files("os").sync_dir(str(tmp_path / "missing"))


@posix
def test_a_file_system_without_sync_of_directories_is_no_error_and_a_broken_one_is(tmp_path: Path) -> None:
    class Answers(Files):
        def __init__(self, code: int) -> None:
            super().__init__()
            self.code = code

        def _flush(self, fd: int, *, data_only: bool) -> None:
            raise OSError(self.code, os.strerror(self.code))

    Answers(errno.EINVAL).sync_dir(str(tmp_path))
    with pytest.raises(OSError, match="Input/output error"):
        Answers(errno.EIO).sync_dir(str(tmp_path))
    fd = Files().create(str(tmp_path / "a"))
    with pytest.raises(OSError, match="Invalid argument"):
        Answers(errno.EINVAL).sync(fd)
    os.close(fd)


@posix
@pytest.mark.parametrize(("code", "expected"), [(0, []), (errno.ENOTSUP, ["fsync"]), (errno.EIO, ["error"])])
def test_macos_syncs_through_the_drive_s_cache_where_the_file_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: list[str]
) -> None:
    import fcntl

    fd, asked = Files().create(str(tmp_path / "a")), list[str]()

    def full_sync(_: int, command: int) -> int:
        assert command == 51
        if code:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda _: asked.append("fsync"))
    try:
        Files().sync(fd)
    except OSError:
        asked.append("error")
    monkeypatch.undo()
    os.close(fd)
    assert asked == expected


def test_windows_has_no_sync_of_directories(tmp_path: Path) -> None:
    AsWindows().sync_dir(str(tmp_path / "missing"))


def test_a_rename_on_windows_waits_for_another_program_for_a_bounded_time(tmp_path: Path) -> None:
    files, source, target = AsWindows(), tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"abc")
    files.held = 5
    files.rename(str(source), str(target))
    assert target.read_bytes() == b"abc"
    assert len(files.pauses) == 5
    files.held = 1000
    files.pauses.clear()
    with pytest.raises(PermissionError):
        files.rename(str(target), str(source))
    assert files.pauses == sorted(files.pauses)
    assert 1.5 < sum(files.pauses) < 2.5
    assert target.read_bytes() == b"abc"


def test_a_rename_elsewhere_is_tried_once(tmp_path: Path) -> None:
    class Refused(AsWindows):
        windows = False

    files = Refused()
    files.held = 1
    with pytest.raises(PermissionError):
        files.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    assert files.pauses == []


@posix
def test_a_tree_is_removed_and_no_link_in_it_followed(tmp_path: Path, files: Files) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (tree / "d" / "e").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_bytes(b"abc")
    (tree / "d" / "f").write_bytes(b"")
    (tree / "d" / "link").symlink_to(outside)
    (tree / "file-link").symlink_to(outside / "kept")
    files.remove_tree(str(tree))
    assert not tree.exists()
    link = tmp_path / "link"
    link.symlink_to(outside)
    files.remove_tree(str(link))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (outside / "kept").read_bytes() == b"abc"


def test_removing_what_another_process_removed_is_no_error(tmp_path: Path) -> None:
    files = Files()
    files.remove_tree(str(tmp_path / "missing"))
    (tmp_path / "tree" / "d").mkdir(parents=True)
    (tmp_path / "tree" / "f").write_bytes(b"")

    class Overtaken(Files):
        def scan(self, path: str) -> list[DirEntryInfo]:
            found = super().scan(path)
            for entry in found:
                files.remove_tree(os.path.join(path, entry.name))
            return found

    Overtaken().remove_tree(str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists()


def test_an_error_while_removing_is_raised(tmp_path: Path) -> None:
    (tmp_path / "tree" / "d").mkdir(parents=True)
    files = FaultyFiles()
    files.fail_at(1, errno.EACCES, matching=lambda call: call.name == "scan")
    with pytest.raises(PermissionError):
        files.remove_tree(str(tmp_path / "tree"))
    assert (tmp_path / "tree" / "d").exists()


def test_a_lock_excludes_another_open_file_of_the_same_process(tmp_path: Path) -> None:
    files = Files()
    path = str(tmp_path / "lock")
    one, two = files.create(path), files.open_append(path)
    assert files.lock(one)
    assert not files.lock(two)
    files.unlock(one)
    assert files.lock(two)
    files.close(two)
    assert files.lock(one)
    files.close(one)


def test_descriptors_are_not_inherited_by_other_programs(tmp_path: Path) -> None:
    files = Files()
    path = str(tmp_path / "a")
    descriptors: list[Callable[[str], int]] = [files.create, files.open_append, files.open_read]
    for opener in descriptors:
        fd = opener(path)
        assert not os.get_inheritable(fd)
        files.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files of the process")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    files = Files()
    files.replace_file(str(tmp_path / "a"), b"abc")
    files.read_file(str(tmp_path / "a"))
    files.sync_dir(str(tmp_path))
    files.scan(str(tmp_path))
    for name in ("missing", "d"):
        with pytest.raises((OSError, UnsafePathError)):
            files.read_file(str(tmp_path / name))
        (tmp_path / "d").mkdir(exist_ok=True)
    assert sorted(os.listdir("/proc/self/fd")) == before


@posix
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_modes_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    old = os.umask(0o777)
    monkeypatch.setattr(os, "chmod", refuse)
    files = Files()
    try:
        files.mkdir(str(tmp_path / "directory"))
        files.close(files.create(str(tmp_path / "file")))
    finally:
        os.umask(old)
    assert {path.name for path in tmp_path.iterdir()} == {"directory", "file"}


@posix
def test_a_mode_that_cannot_be_set_for_another_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    old = os.umask(0o777)
    monkeypatch.setattr(os, "chmod", fail)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            Files().create(str(tmp_path / "file"))
    finally:
        os.umask(old)
