"""The compiled parts; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

setup(
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
        )
    ]
)
