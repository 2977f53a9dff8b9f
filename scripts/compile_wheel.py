"""The build hook that compiles a part of the package if SLIDEGATE_COMPILE=1.

Without that variable it does nothing, and the wheel is pure. With it, mypyc compiles the files listed in pyproject.toml
(`[tool.hatch.build.hooks.custom]`) to extension modules, which the wheel contains next to their source. Python prefers
them on import. Nothing is written into the checkout, where extension modules would silently replace the source.

``python -m scripts.compile_wheel`` builds that wheel into build/compiled, and unpacks it there into lib.
"""

import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "slidegate"
BUILT = ROOT / "build" / "compiled"


def chosen(config: dict[str, Any]) -> list[Path]:
    """Return the files to compile: those that `compile` in pyproject.toml lists."""
    return [PACKAGE / name for name in config["compile"]]


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds extension modules to a wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the build requirements: mypyc, and the packages whose types the source uses."""
        return [*self.config["requires"], *self.metadata.core.dependencies] if self.asked else []

    @property
    def asked(self) -> bool:
        """Whether to compile this build."""
        return os.environ.get("SLIDEGATE_COMPILE") == "1" and self.target_name == "wheel"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the extension modules and register them with the builder."""
        if not self.asked or version == "editable":
            return
        self._made = TemporaryDirectory(prefix="slidegate-")
        modules = compile_to(Path(self._made.name), chosen(self.config))
        build_data["force_include"].update({str(path): name for path, name in modules.items()})
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory."""
        if self.asked and version != "editable":
            self._made.cleanup()


def compile_to(made: Path, files: list[Path]) -> dict[Path, str]:
    """Compile files into a directory; return each extension module -> its path in the wheel."""
    # Installed only for compiled builds.
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    # Strict type checking is done elsewhere; a build must not fail because of a missing stub.
    options = ("--config-file=", "--ignore-missing-imports", f"--cache-dir={made / 'cache'}")
    shutil.copytree(PACKAGE, made / "src" / PACKAGE.name)
    # mypyc and setuptools derive module names from paths relative to the current directory.
    with chdir(made / "src"):
        paths = [str(file.relative_to(PACKAGE.parent)) for file in files]
        extensions = mypycify(
            [*options, *paths], target_dir=str(made / "c"), group_name="slidegate", opt_level="3", debug_level="0"
        )
        build = build_ext(Distribution({"name": "slidegate", "ext_modules": extensions}))
        build.build_lib, build.build_temp = str(made / "lib"), str(made / "objects")
        build.ensure_finalized()
        build.run()
    built = (path for path in (made / "lib").rglob("*") if path.suffix in {".so", ".pyd"})
    return {path: path.relative_to(made / "lib").as_posix() for path in built}


def main() -> None:
    """Build the compiled wheel of the checkout."""
    print("compiling slidegate; this takes a minute or two ...", file=sys.stderr, flush=True)
    shutil.rmtree(BUILT, ignore_errors=True)
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(BUILT))
    subprocess.run(command, cwd=ROOT, env={**os.environ, "SLIDEGATE_COMPILE": "1"}, check=True)
    (wheel,) = BUILT.glob("*.whl")
    shutil.unpack_archive(wheel, BUILT / "lib", "zip")


if __name__ == "__main__":
    main()
