"""The extension modules of dps and the compiler's flags; all else is in pyproject.toml.

``DPS_DEBUG=1`` builds with bounds checks, ``DPS_PORTABLE=1`` without what only Linux on x86-64 has.
"""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
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
MACROS = [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]
MACROS += [("DPS_DEBUG", "1")] if DEBUG else []
MACROS += [("DPS_PORTABLE", "1")] if PORTABLE else []

# What Cython would else write into each translation, such as the type of memoryviews: half of it.
SHARED = "dps._cython"

SOURCES = [
    source
    for folder in ("_kernels", "_runtime")
    for source in sorted(Path("dps", folder).glob("*.pyx"))
]
EXTENSIONS = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        include_dirs=[numpy.get_include(), "dps/_kernels", "dps/_runtime"],
        define_macros=MACROS,
        extra_compile_args=FLAGS,
    )
    for source in [Path("dps/_cython.c"), *SOURCES]
]


class BuildKernels(build_ext):
    """Translate when the modules are built: pip runs this file three times an installation."""

    def run(self) -> None:
        """Translate, then compile."""
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
            # The flags above are in no time stamp, so that only a forced build follows them.
            force=True,
        )
        for extension, made in zip(self.extensions, translated, strict=True):
            extension.sources = made.sources
        self.parallel = self.parallel or os.cpu_count()
        super().run()


if __name__ == "__main__":  # processes that translate may import this file
    setup(
        ext_modules=EXTENSIONS,
        cmdclass={"build_ext": BuildKernels},
        options={"build_ext": {"force": True}},
    )
