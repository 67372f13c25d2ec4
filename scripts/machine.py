"""The machine that measurements are made on: processor, cores, instruction set and operating system.

Nothing here tells one machine of a kind from another: no host names, addresses or paths.
"""

import os
import platform
import subprocess
from pathlib import Path

# Sets that OXIDIZE_ISA names, best first, with the flags of /proc/cpuinfo that each needs.
X86_SETS = [
    ("amx", {"amx_tile", "amx_int8", "avx512f", "avx512_vnni"}),
    ("avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}),
    ("avxvnni", {"avx_vnni", "avx2", "fma", "f16c"}),
    ("avx2", {"avx2", "fma", "f16c"}),
]
ARM_SETS = [("neon-i8mm", {"i8mm", "asimddp"}), ("neon-dotprod", {"asimddp"}), ("neon", set())]


def cpuinfo() -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def sysctl(name: str) -> str:
    """A value of macOS; empty elsewhere."""
    if platform.system() != "Darwin":
        return ""
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def processor() -> str:
    """Name of the processor."""
    info = cpuinfo()
    return info.get("model name") or sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def instruction_set() -> str | None:
    """The best set of `OXIDIZE_ISA` that the processor has, if that can be found out."""
    info, architecture = cpuinfo(), platform.machine().lower()
    if architecture in ("x86_64", "amd64"):
        flags, sets, last = set(info.get("flags", "").split()), X86_SETS, "scalar"
    elif architecture in ("aarch64", "arm64"):
        flags, sets, last = set(info.get("Features", "").split()), ARM_SETS, "neon"
        if sysctl("hw.optional.arm.FEAT_DotProd") == "1":
            flags.add("asimddp")
        if sysctl("hw.optional.arm.FEAT_I8MM") == "1":
            flags.add("i8mm")
    else:
        return None
    if not flags:
        return None
    return next((name for name, needed in sets if needed <= flags), last)


def identify() -> dict[str, object]:
    """This machine as the history of the dashboard stores it; what cannot be found out is left out."""
    info, name = cpuinfo(), processor()
    # Virtual machines name only the brand; family and model say which generation it is.
    if "cpu family" in info and "model" in info:
        name += f" (family {info['cpu family']}, model {info['model']})"
    fields = {
        "processor": name,
        "cores": os.cpu_count(),
        "isa": instruction_set(),
        "os": {"Darwin": "macOS"}.get(platform.system(), platform.system()),
    }
    return {key: value for key, value in fields.items() if value}
