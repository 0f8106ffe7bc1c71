"""The compiled parts; everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

EMULATOR = Path("bagua_bench/network/cpp")
TRANSPORT = Path("bagua_bench/transport/cpp")
EXPORTS = str(TRANSPORT / "exports.map")
STRICT = ["-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread"]


class BuildLibraries(build_ext):
    """Python modules get Python's suffix; libraries that other programs load by name do not."""

    def get_ext_filename(self, fullname: str) -> str:
        """File of an extension, relative to the root."""
        if fullname.rpartition(".")[2].startswith("lib"):
            return fullname.replace(".", "/") + ".so"
        return super().get_ext_filename(fullname)


def files(folder: Path, suffix: str) -> list[str]:
    """All files there that end so."""
    return sorted(str(path) for path in folder.rglob(f"*{suffix}"))


setup(
    cmdclass={"build_ext": BuildLibraries},
    ext_modules=[
        Extension(
            "algorithms.codecs._kernels",
            ["algorithms/codecs/kernels.cpp"],
            language="c++",
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-Wall",
                "-Wextra",
                "-ffp-contract=off",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-fno-signed-zeros",
                "-ffinite-math-only",
            ],
            optional=True,
        ),
        Extension(
            "bagua_bench.network.librelay",
            files(EMULATOR, ".cpp"),
            depends=files(EMULATOR, ".h"),
            language="c++",
            extra_compile_args=STRICT,
            optional=True,
        ),
        Extension(
            "bagua_bench.transport.libnccl-net-bagua",
            files(TRANSPORT, ".cpp"),
            depends=[*files(TRANSPORT, ".h"), EXPORTS],
            language="c++",
            extra_compile_args=STRICT,
            # NCCL unloads a plugin while a thread may still be in it, so it stays. It brings a C++ library of its own:
            # programs that load it may have loaded another one.
            extra_link_args=[
                "-pthread",
                "-static-libstdc++",
                "-static-libgcc",
                f"-Wl,--version-script={EXPORTS}",
                "-Wl,-z,nodelete",
                "-Wl,-z,defs",
            ],
            optional=True,
        ),
    ],
)
