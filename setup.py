"""The compiled parts; everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

TRANSPORT = "bagua_bench/transport"
STRICT = ["-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread"]


class BuildLibraries(build_ext):
    """Python modules get Python's suffix; libraries that other programs load by name do not."""

    def get_ext_filename(self, fullname: str) -> str:
        """File of an extension, relative to the root."""
        if fullname.rpartition(".")[2].startswith("lib"):
            return fullname.replace(".", "/") + ".so"
        return super().get_ext_filename(fullname)


def sources(*folders: str) -> list[str]:
    """All C++ files of the transport's folders."""
    return sorted(str(path) for folder in folders for path in Path(TRANSPORT, folder).glob("*.cpp"))


def headers(*folders: str) -> list[str]:
    """All headers of the transport's folders."""
    return sorted(str(path) for folder in folders for path in Path(TRANSPORT, folder).glob("*.h"))


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
            "bagua_bench.transport.libnccl-net-bagua",
            sources("core", "nccl", "collectives"),
            depends=headers("core", "nccl", "collectives"),
            language="c++",
            extra_compile_args=STRICT,
            # NCCL unloads a plugin while a thread may still be in it, so it stays.
            extra_link_args=["-pthread", "-Wl,-z,nodelete", "-Wl,-z,defs"],
            optional=True,
        ),
        Extension(
            "bagua_bench.transport.libbagua-net-harness",
            sources("harness"),
            depends=headers("harness", "nccl"),
            language="c++",
            extra_compile_args=STRICT,
            extra_link_args=["-pthread", "-ldl"],
            optional=True,
        ),
    ],
)
