"""The simulated libraries: built once for one CUDA build of torch, and found again in the cache folder.

A library has a function for every symbol of the real one, since torch would not load otherwise: those of
`native/*.cpp`, and for each of the others a stub that answers "success" and is named in the log when it is called.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import re
import tempfile
from pathlib import Path

from memgraph.base.compiler import CompilerError, compiler, run
from memgraph.base.errors import MemgraphError
from memgraph.base.folder import cache_folder

NATIVE = Path(__file__).parent / "native"
CUDA = "13"  # the major version that the sources are written for; torch 2.11 and 2.13 bring it


class SimulatorError(MemgraphError, RuntimeError):
    """No device can be simulated here: torch is not a CUDA build of a version that is known, or no compiler works."""


@dataclasses.dataclass(frozen=True)
class Library:
    """One library that torch loads."""

    soname: str
    sources: tuple[str, ...]
    installed: bool = True
    """Whether it comes with torch; others come with a driver."""
    header: str = ""
    """Of a library that is not installed: the header that names its functions; "" where those in `sources` suffice."""
    package: str = f"cu{CUDA}"
    """Of an installed one: the folder that it lies in, beside those of NVIDIA's other packages."""
    prefix: str = ""
    """Of an installed one whose symbols bear no version: how its own begin. Others have the soname as their version."""

    @property
    def version(self) -> str:
        """Of its symbols; "" for none."""
        return self.soname if self.installed and not self.prefix else ""


RUNTIME = Library(f"libcudart.so.{CUDA}", ("card.cpp", "memory.cpp", "streams.cpp", "kernels.cpp"))
LIBRARIES = (
    RUNTIME,
    Library(f"libcublasLt.so.{CUDA}", ("cublasLt.cpp",)),
    Library(f"libcublas.so.{CUDA}", ("cublas.cpp",)),
    Library("libcuda.so.1", ("driver.cpp",), installed=False, header="cuda.h"),
    Library("libnvidia-ml.so.1", ("nvml.cpp",), installed=False),
    Library("libnccl.so.2", ("nccl.cpp",), package="nccl", prefix="nccl"),
)


@dataclasses.dataclass(frozen=True)
class Real:
    """The CUDA that torch was installed with."""

    packages: Path
    """The folder of NVIDIA's packages, each of which has a folder `lib`."""
    includes: tuple[Path, ...]
    """Folders of headers; the first one has cuda.h."""

    def file(self, library: Library) -> Path:
        """Where an installed library lies."""
        return self.packages / library.package / "lib" / library.soname

    def symbols(self, library: Library) -> list[str]:
        """The functions of the real library. Those of the driver, which is not installed, are read from its header.

        Raises CompilerError where readelf fails.
        """
        if not library.installed:
            header = (self.includes[0] / library.header).read_text() if library.header else ""
            names = set(re.findall(r"CUresult CUDAAPI (cu\w+)\(", header))
            names |= set(re.findall(r"#define cu\w+\s+(cu\w+)", header))
            return sorted(names | {name + suffix for name in names for suffix in ("_v2", "_ptsz")})
        command = ["readelf", "-W", "--dyn-syms", str(self.file(library))]
        listed = run(command, "the symbols of the real libraries cannot be read")
        ending = "@" if library.version else r"\b"
        named = rf"FUNC\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ ({library.prefix}\w+){ending}"
        return sorted(set(re.findall(named, listed)))


def folder() -> Path:
    """Return the folder of the simulated libraries for this installation of torch; builds them where there is none yet.

    Building takes some ten seconds. Raises SimulatorError.
    """
    real = installed()
    made = cache_folder() / "simulator" / _key(real)
    if made.is_dir():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".build-") as place:
        built = Path(place) / "built"
        built.mkdir()
        try:
            for library in LIBRARIES:
                _build(library, real, built)
        except CompilerError as error:
            raise SimulatorError(str(error)) from error
        for left in (*built.glob("*.o"), *built.glob("*.map"), *built.glob("*_stubs.cpp")):
            left.unlink()
        try:
            built.rename(made)
        except OSError:  # another process was faster
            if not made.is_dir():
                raise
    return made


def paths() -> tuple[Path, ...]:
    """The simulated libraries, in the order in which they are loaded."""
    return tuple(folder() / library.soname for library in LIBRARIES)


@functools.cache
def installed() -> Real:
    """Where the CUDA libraries and headers of this installation lie; raises SimulatorError where there are none.

    Found without an import of torch, which would load the real libraries into this process.
    """
    site = _site()
    found = Real(site / "nvidia", ())
    missing = [found.file(library) for library in LIBRARIES if library.installed and not found.file(library).is_file()]
    if missing:
        version = (site / "torch" / "version.py").read_text()
        cuda = re.search(r"^cuda\b.*= *(.+)$", version, re.MULTILINE)
        raise SimulatorError(
            f"a CUDA device can be simulated for torch's builds for CUDA {CUDA}, such as PyPI's torch 2.11 and 2.13 "
            f"(pip install torch===2.13.0); this one is built for CUDA {cuda[1] if cuda else None}, and has no "
            f"{missing[0]}"
        )
    known = (found.packages / RUNTIME.package / "include", site / "triton" / "backends" / "nvidia" / "include")
    includes = tuple(place for place in known if (place / "cuda.h").is_file())
    if not includes or not any((place / "cuda_runtime_api.h").is_file() for place in includes):
        raise SimulatorError(f"the headers of CUDA are neither in {known[0]} nor in {known[1]}: is triton installed?")
    others = {found.packages / library.package / "include" for library in LIBRARIES if library.installed}
    return Real(found.packages, (*includes, *sorted(others - set(includes))))


def _site() -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise SimulatorError("torch is not installed")
    return Path(found.origin).parent.parent


def _key(real: Real) -> str:
    """Names what the libraries are made of: their sources, and the real ones."""
    digest = hashlib.sha256()
    for source in sorted(NATIVE.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    for library in LIBRARIES:
        if library.installed:
            digest.update(f"{library.soname} {real.file(library).stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _build(library: Library, real: Real, into: Path) -> None:
    written = {
        name
        for source in library.sources
        for name in re.findall(
            r"^(?:API [^(\n]*?[\s*]|PRODUCT\()(\w+)[()]", (NATIVE / source).read_text(), re.MULTILINE
        )
    }
    stubs, script = into / f"{library.soname}_stubs.cpp", into / f"{library.soname}.map"
    lines = [
        f'extern "C" int {name}(void) {{ simulated_not_modelled("{name}"); return 0; }}'
        for name in real.symbols(library)
        if name not in written
    ]
    stubs.write_text("\n".join(['extern "C" void simulated_not_modelled(const char*);', *lines, ""]))
    script.write_text(f"{library.version} {{ global: *; }};\n")
    sources = [str(NATIVE / source) for source in library.sources]
    includes = [f"-I{place}" for place in real.includes]
    flags = ["-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-fno-builtin", "-fvisibility=hidden"]
    exported = ["-fvisibility=default", str(stubs)]
    linked = [] if library is RUNTIME else [str(into / RUNTIME.soname)]
    run([compiler(), *flags, *includes, *sources, *exported, "-o", str(into / library.soname),
         f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={script}", *linked, "-ldl"],
        f"{library.soname} cannot be built")  # fmt: skip
