"""Building the torch part: found again, rebuilt when anything it depends on changes, and refused with one clear text."""

from __future__ import annotations

import dataclasses
import multiprocessing
import stat
import sys
from pathlib import Path

import pytest

from stalloc_accel import environment, extension, sources, toolchain
from stalloc_accel.errors import BuildError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def small_sources(tmp_path, monkeypatch) -> Path:
    """A source tree whose CPU module is one small file, so that a build takes a second."""
    csrc = tmp_path / "csrc"
    write(csrc / "core" / "answer.h", "inline int answer() { return 42; }\n")
    write(csrc / "core" / "core.cpp", '#include "core/answer.h"\n')
    for name in ("engine_class.cpp", "plan_arrays.cpp"):
        write(csrc / "python" / name, "")
    write(csrc / "torch" / "cpu_module.cpp", """
        #include <Python.h>
        #include "core/answer.h"
        static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_torch_cpu", nullptr, -1, nullptr};
        PyMODINIT_FUNC PyInit__torch_cpu() {
          PyObject* module = PyModule_Create(&definition);
          PyModule_AddIntConstant(module, "answer", answer());
          return module;
        }
    """)
    monkeypatch.setattr(sources, "csrc_dir", lambda: csrc)
    monkeypatch.setenv("STALLOC_EXTENSION_DIR", str(tmp_path / "extensions"))
    # The module of the running process, if there is one, is no matter of these tests.
    monkeypatch.delitem(sys.modules, "stalloc_accel._torch_cpu", raising=False)
    yield csrc
    sys.modules.pop("stalloc_accel._torch_cpu", None)


def built_folders() -> list[Path]:
    return [path for path in environment.extension_dir().iterdir() if path.is_dir()]


def test_a_module_is_built_once_and_found_again(small_sources, monkeypatch):
    assert extension.find(extension.plan_build("cpu")) is None
    assert extension.load("cpu").answer == 42
    assert len(built_folders()) == 1
    sys.modules.pop("stalloc_accel._torch_cpu")
    monkeypatch.setattr(extension, "_compile", lambda *_: pytest.fail("it was built before"))
    assert extension.load("cpu").answer == 42
    assert extension.load("cpu") is extension.load("cpu")


def test_a_changed_header_is_another_build(small_sources):
    before = extension.plan_build("cpu")
    extension.load("cpu")
    write(small_sources / "core" / "answer.h", "inline int answer() { return 43; }\n")
    after = extension.plan_build("cpu")
    assert before.folder != after.folder
    assert extension.find(after) is None


def test_another_torch_or_compiler_is_another_build(small_sources, monkeypatch):
    build = extension.plan_build("cpu")
    installed = toolchain.installed_torch()
    compiler = toolchain.find_compiler()
    other_torch = dataclasses.replace(installed, git_version="0" * 40)
    monkeypatch.setattr(toolchain, "installed_torch", lambda: other_torch)
    assert extension.plan_build("cpu").folder != build.folder
    monkeypatch.setattr(toolchain, "installed_torch", lambda: installed)
    monkeypatch.setattr(toolchain, "find_compiler", lambda: toolchain.Compiler(compiler.path, "other 1.0"))
    assert extension.plan_build("cpu").folder != build.folder


def test_without_a_compiler_a_build_made_elsewhere_is_used_and_none_is_an_error(small_sources, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="compiler='no-such-compiler'.*Install g"):
        extension.load("cpu")
    monkeypatch.delenv("CXX")
    extension.load("cpu")
    sys.modules.pop("stalloc_accel._torch_cpu")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert extension.load("cpu").answer == 42


def test_a_source_that_does_not_compile_is_told_with_the_compilers_words(small_sources):
    write(small_sources / "core" / "answer.h", "this is no C++\n")
    with pytest.raises(BuildError, match="must end with status 0. The compiler says: .*error") as caught:
        extension.load("cpu")
    assert "Training stays on torch's own allocator" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert built_folders() == []


def test_a_library_that_cannot_be_loaded_is_told(small_sources):
    library = extension.plan_build("cpu").library
    write(library, "no library")
    environment.extension_dir().chmod(0o700)
    with pytest.raises(BuildError, match="must be loadable.*Remove the folder"):
        extension.load("cpu")


def test_a_folder_that_others_can_write_is_refused(small_sources, monkeypatch):
    extension.load("cpu")
    sys.modules.pop("stalloc_accel._torch_cpu")
    root = environment.extension_dir()
    root.chmod(0o777)
    with pytest.raises(BuildError, match="only you can write"):
        extension.load("cpu")
    root.chmod(0o700)
    link = root.parent / "link"
    link.symlink_to(root)
    monkeypatch.setenv("STALLOC_EXTENSION_DIR", str(link))
    with pytest.raises(BuildError, match="only you can write"):
        extension.load("cpu")


def test_the_folder_is_made_for_its_owner_alone(small_sources):
    extension.load("cpu")
    assert stat.S_IMODE(environment.extension_dir().stat().st_mode) == 0o700


def test_a_place_where_no_folder_can_be_made_is_told(small_sources, tmp_path, monkeypatch):
    monkeypatch.setenv("STALLOC_EXTENSION_DIR", str(write(tmp_path / "file", "") / "below"))
    with pytest.raises(BuildError, match="extension_dir=.*must be writable.*STALLOC_EXTENSION_DIR"):
        extension.load("cpu")


def test_an_unknown_backend_is_told():
    with pytest.raises(BuildError, match="backend='xpu'"):
        extension.load("xpu")


def test_cuda_without_a_cuda_torch_is_told():
    if toolchain.installed_torch().cuda_version is not None:
        pytest.skip("the installed torch is a CUDA build")
    with pytest.raises(BuildError, match="must be a build for CUDA"):
        extension.plan_build("cuda")


def test_only_the_newest_builds_are_kept(small_sources, monkeypatch):
    monkeypatch.setattr(extension, "_NUM_KEPT", 2)
    folders = []
    for answer in (1, 2, 3):
        write(small_sources / "core" / "answer.h", f"inline int answer() {{ return {answer}; }}\n")
        sys.modules.pop("stalloc_accel._torch_cpu", None)
        assert extension.load("cpu").answer == answer
        folders.append(extension.plan_build("cpu").folder)
    assert sorted(built_folders()) == sorted(folders[1:])


def load_and_count(barrier, results) -> None:
    compiled = []
    original = extension._compile
    extension._compile = lambda *arguments: compiled.append(1) or original(*arguments)
    barrier.wait()
    results.put((extension.load("cpu").answer, len(compiled)))


def test_many_ranks_at_once_build_once(small_sources):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    ranks = [context.Process(target=load_and_count, args=(barrier, results)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    answers = [results.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert [answer for answer, _ in answers] == [42] * 4
    assert sum(count for _, count in answers) == 1
    assert len(built_folders()) == 1


def test_cuda_headers_are_ranked_by_version_and_completeness(tmp_path, monkeypatch):
    def headers(name: str, version: int, complete: bool) -> Path:
        folder = tmp_path / name
        write(folder / "cuda_runtime_api.h", f"#define CUDART_VERSION {version}\n")
        if complete:
            write(folder / "crt" / "host_defines.h", "")
        return folder

    folders = [headers("old", 12080, True), headers("minor", 13010, True), headers("wheel", 13000, False)]
    monkeypatch.setattr(toolchain, "_cuda_folders", lambda major: [tmp_path / "none", *folders])
    found = toolchain.find_cuda_headers("13.0")
    assert found.folder == tmp_path / "wheel" and not found.is_complete and found.version == (13, 0)
    folders.append(headers("toolkit", 13000, True))
    assert toolchain.find_cuda_headers("13.0").folder == tmp_path / "toolkit"
    assert toolchain.find_cuda_headers("12.6").folder == tmp_path / "old"
    assert toolchain.find_cuda_headers("11.8") is None


def test_the_standard_follows_torch():
    assert toolchain.cxx_standard("2.8.0") == "c++17"
    assert toolchain.cxx_standard("2.14.1+cu130") == "c++20"
    assert toolchain.cxx_standard("2.15.0a0+git1234") == "c++20"
