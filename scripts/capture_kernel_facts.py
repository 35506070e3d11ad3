# SPDX-License-Identifier: Apache-2.0
"""Save what the probes ask of a kernel, as one says it, for tests on any machine.

``python -m scripts.capture_kernel_facts [FOLDER]`` boots each kernel that the slow tests boot
(see ``tests/qemu``) and writes ``SERIES.json``, by default where the unit tests look.

``--image ARM64-VMLINUZ NAME`` reads of a kernel that nothing here can boot what its image says:
the types. ``apt-get download linux-image-RELEASE-cloud-arm64`` has one; it writes ``NAME.json``.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import sys
import tempfile
from pathlib import Path

from gpucorrelate.probes.ebpf.support import KernelFacts, known_symbols
from gpucorrelate.probes.ebpf.syscall_numbers import ARM64
from tests.qemu import disk
from tests.qemu.guest import Guest, why_not
from tests.qemu.kernels import ROOT, SERIES, NoKernelError, kernel

_FOLDER = ROOT / "tests" / "unit" / "data" / "kernels"
_ASK = """
import dataclasses, json
from gpucorrelate.probes.ebpf.support import facts
found = facts()
print(json.dumps(dataclasses.asdict(found) | {"symbols": sorted(found.symbols)}))
"""


#: The beginning of a BTF blob: magic, version, flags, size of the header.
_BTF = b"\x9f\xeb\x01\x00\x18\x00\x00\x00"
_BTF_HEADER = struct.Struct("<8sIIII")


def btf_of(image: bytes) -> bytes:
    """The types of a kernel in its image, not compressed: the largest blob, as modules have some.

    Raises:
        ValueError: it has none.
    """
    found = b""
    at = image.find(_BTF)
    while at >= 0:
        _, _, _, strings_at, strings_bytes = _BTF_HEADER.unpack_from(image, at)
        size = _BTF_HEADER.size + strings_at + strings_bytes
        if size > len(found):
            found = image[at : at + size]
        at = image.find(_BTF, at + 1)
    if not found:
        raise ValueError("no types in it; is it compressed?")
    return found


def image_facts(path: Path) -> KernelFacts:
    """What an arm64 kernel of Debian's says of itself; the rest as root finds it there."""
    config = path.with_name(path.name.replace("vmlinuz", "config", 1)).read_text()
    restricts = "CONFIG_SECURITY_PERF_EVENTS_RESTRICT=y" in config
    return KernelFacts(
        machine=ARM64,
        release=path.name.removeprefix("vmlinuz-"),
        btf=True,
        symbols=known_symbols(btf_of(path.read_bytes())),
        capabilities=(1 << 41) - 1,
        perf_event_paranoid=3 if restricts else 2,
        initial_pid_ns=True,
        lockdown="",
        libbpf="v1.1",
        object_built=True,
    )


def _write(path: Path, found: KernelFacts) -> None:
    facts = dataclasses.asdict(found) | {"symbols": sorted(found.symbols)}
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    print(f"{path}: {found.release}")


def main() -> int:
    """Capture; the exit code."""
    if sys.argv[1:2] == ["--image"]:
        _write(_FOLDER / f"{sys.argv[3]}.json", image_facts(Path(sys.argv[2])))
        return 0
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        kernels = [kernel(series) for series in SERIES]
    except NoKernelError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="gpcd") as made:
        image = disk.build(Path(made), kernels)
        for one in kernels:
            with Guest(one, image) as guest:
                found = json.loads(guest.python("-c", _ASK).text)
            path = folder / f"{one.series}.json"
            path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(f"{path}: {one.release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
