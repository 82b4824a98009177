"""The extension modules of dps and the compiler's flags; all else is in pyproject.toml.

``DPS_DEBUG=1`` builds with bounds checks, ``DPS_PORTABLE=1`` without what only Linux on x86-64 has.
"""

import os
import sys
import sysconfig
from pathlib import Path

import Cython
from Cython.Build import cythonize
from Cython.Build.Dependencies import create_dependency_tree
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("DPS_DEBUG") == "1"
PORTABLE = os.environ.get("DPS_PORTABLE") == "1"

# No flag here may change a result from one processor to the next: see docs on equal bits.
# -fno-math-errno lets sqrt vectorise, -ffp-contract=off forbids fused multiply-add.
# Python adds -fwrapv, under which a dense gradient takes a quarter longer: no index here wraps.
# Python adds -g as well: what a debugger reads is a quarter of a compiler's time.
FLAGS = ["-O1", "-g1", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
FLAGS += ["-fno-math-errno", "-ffp-contract=off", "-fno-wrapv"]
MACROS = [("DPS_DEBUG", "1")] if DEBUG else []
MACROS += [("DPS_PORTABLE", "1")] if PORTABLE else []

#: One build for CPython 3.11, the first with what memoryviews need, and later ones. Free-threaded
#: interpreters have no such interface yet.
ABI3 = "cp311" if not sysconfig.get_config_var("Py_GIL_DISABLED") else None
MACROS += [("Py_LIMITED_API", "0x030B0000")] if ABI3 else []

# What Cython would else write into each translation, such as the type of memoryviews: half of it.
SHARED = "dps._cython"

#: What decides over an object file and has no time stamp of its own; written when it changes.
STAMP = Path("build/flags.txt")
HEADERS = sorted(str(path) for path in Path("dps").glob("_*/*.h"))

#: What tests alone call; never installed.
OF_TESTS = sorted(Path("tests", "harness").glob("*.pyx"))
SOURCES = sorted(Path("dps").rglob("*.pyx")) + OF_TESTS
EXTENSIONS = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        include_dirs=["dps/_kernels", "dps/_runtime"],
        define_macros=MACROS,
        extra_compile_args=FLAGS,
        depends=[str(STAMP), *HEADERS],
        py_limited_api=bool(ABI3),
    )
    for source in [Path("dps/_cython.c"), *SOURCES]
]


def time_of(name: str) -> float:
    """When a file was changed; what pip unpacks anew for each build is as old as its version."""
    return os.path.getmtime(name) if Path(name).resolve().is_relative_to(Path.cwd()) else 0.0


def newer(made: Path, *sources: str) -> bool:
    """Whether a file is there and not older than any of these."""
    return made.exists() and made.stat().st_mtime >= max(map(os.path.getmtime, sources))


class BuildKernels(build_ext):
    """Translate when the modules are built: pip runs this file three times an installation.

    pip builds in a new folder each time, so what is up to date is seen beside the sources.
    """

    def run(self) -> None:
        """Translate, then compile."""
        if not (self.inplace or self.editable_mode):
            names = {".".join(source.with_suffix("").parts) for source in OF_TESTS}
            self.extensions = [each for each in self.extensions if each.name not in names]
        text = repr((FLAGS, MACROS, Cython.__version__, ABI3 or sys.version))
        if not STAMP.exists() or STAMP.read_text() != text:
            STAMP.parent.mkdir(exist_ok=True)
            STAMP.write_text(text)
        for source in SOURCES:
            translation = source.with_suffix(".c")
            if not newer(translation, str(STAMP)):
                translation.unlink(missing_ok=True)
        create_dependency_tree().timestamp = time_of
        translated = cythonize(
            self.extensions,
            nthreads=os.cpu_count() or 1,
            shared_utility_qualified_name=SHARED,
            compiler_directives={
                "language_level": 3,
                "boundscheck": DEBUG,
                "wraparound": DEBUG,
                "initializedcheck": DEBUG,
                "cdivision": True,
                "embedsignature": True,
            },
        )
        for extension, made in zip(self.extensions, translated, strict=True):
            extension.sources = made.sources
        self.parallel = self.parallel or os.cpu_count()
        self.beside_sources = self.inplace
        super().run()

    def build_extension(self, extension: Extension) -> None:
        """Compile a module, or take the one beside its source where nothing has changed."""
        beside = Path(self.get_ext_filename(extension.name))
        for other in beside.parent.glob(f"{extension.name.split('.')[-1]}.*{beside.suffix}"):
            if self.inplace and other.name != beside.name:
                other.unlink()  # of another version, and imported before this one
        if self.beside_sources and newer(beside, *extension.sources, *extension.depends):
            self.mkpath(str(Path(self.build_lib, beside).parent))
            self.copy_file(str(beside), str(Path(self.build_lib, beside)))
        else:
            super().build_extension(extension)


if __name__ == "__main__":  # processes that translate may import this file
    setup(
        ext_modules=EXTENSIONS,
        cmdclass={"build_ext": BuildKernels},
        options={"bdist_wheel": {"py_limited_api": ABI3}} if ABI3 else {},
    )
