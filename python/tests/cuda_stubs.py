"""Makes small libraries in place of CUDA's, so that PyTorch from PyPI is imported without them.

PyTorch's wheels for Linux are linked with some three gigabytes of CUDA's libraries, and a test on
the CPU needs none of them. This script reads which symbols of them PyTorch's libraries need, and
has the C compiler make libraries with functions that report an error.

    python cuda_stubs.py FOLDER_OF_TORCH OUTPUT_FOLDER
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

#: Libraries that are CUDA's, by the beginnings of their names.
LIBRARY = re.compile(r"lib(cu|nccl|nv)")
#: Which library has a symbol without a version, by the beginning of the symbol.
HOMES = [
    ("cupti", "libcupti"),
    ("nccl", "libnccl"),
    ("pnccl", "libnccl"),
    ("cuFile", "libcufile"),
    ("cusparseLt", "libcusparseLt"),
    ("nvshmem", "libnvshmem"),
    ("cu[A-Z]", "libcuda.so"),
]
#: The version of a symbol that does not name its library.
VERSIONS = {"NVSHMEM": "libnvshmem_host"}


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(library: Path) -> set[str]:
    """The libraries of CUDA that a library is linked with."""
    found = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", library))
    return {name for name in found if LIBRARY.match(name)}


def symbols(library: Path) -> tuple[set[str], set[str]]:
    """The symbols that a library needs from elsewhere, and those that it has."""
    missing, own = set(), set()
    for line in output("nm", "-D", library).splitlines():
        *rest, kind, name = line.split()
        if kind == "U":
            missing.add(name)
        elif rest:
            own.add(name.split("@")[0])
    return missing, own


def place(symbol: str, libraries: set[str]) -> tuple[str, str | None] | None:
    """The library of CUDA that has a symbol, and the symbol's version. None: another's symbol."""
    name, _, version = symbol.partition("@")
    version = version.lstrip("@") or None
    if version is not None:
        begin = VERSIONS.get(version, version)
        home = next((it for it in libraries if it.startswith(begin)), None)
    else:
        begins = [home for prefix, home in HOMES if re.match(prefix, name)]
        home = next((it for it in libraries if begins and it.startswith(begins[0])), None)
    return None if home is None else (home, version)


def code(symbol: str) -> str:
    if symbol == "__cudaRegisterFatBinary":
        return f"static char binary[64]; void *{symbol}(void *it) {{ return binary; }}"
    if "GetErrorString" in symbol or "GetErrorName" in symbol:
        return f'const char *{symbol}(int it) {{ return "there is no CUDA here"; }}'
    return f"long {symbol}(void) {{ return 100; }}"


def main(torch: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    libraries = sorted((torch / "lib").glob("*.so*"))
    wanted = set().union(*map(needed, libraries))
    missing: set[str] = set()
    own: set[str] = set()
    for library in libraries:
        more, has = symbols(library)
        missing |= more
        own |= has
    stubs: dict[str, dict[str, str | None]] = defaultdict(dict)
    for symbol in missing:
        name = symbol.split("@")[0]
        found = place(symbol, wanted) if name not in own else None
        if found is not None:
            stubs[found[0]][name] = found[1]
    for library in sorted(wanted):
        build(library, stubs[library], to)


def build(library: str, versions: dict[str, str | None], to: Path) -> None:
    source, script = to / f"{library}.c", to / f"{library}.map"
    source.write_text("\n".join(map(code, sorted(versions))) + "\n")
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}"]
    nodes = sorted({version for version in versions.values() if version})
    if nodes:
        script.write_text("".join(f"{node} {{ global: *; }};\n" for node in nodes[:1]))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run([*command, "-o", to / library, source], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
