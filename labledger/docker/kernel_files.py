"""The files of /proc that belong to the kernel: all containers and the machine share their modes.

A `chmod` in one container, by root, is seen in every other one and outlives it. `Engine.create`
therefore mounts them read-only in every container. Files of processes and of a network namespace
are not shared, and the engine makes /proc/sys and /sys read-only by itself.
"""

from __future__ import annotations

import os

from labledger.records import JsonObject

_ENGINE_DEFAULT = frozenset({"bus", "fs", "irq", "sys", "sysrq-trigger"})
"""What engines make read-only unless they are told what to."""
_KNOWN = frozenset(
    {
        *("acpi", "allocinfo", "asound", "bootconfig", "buddyinfo", "cgroups", "cmdline"),
        *("config.gz", "consoles", "cpu", "cpuinfo", "crypto", "device-tree", "devices"),
        *("diskstats", "dma", "driver", "dynamic_debug", "execdomains", "fb", "filesystems"),
        *("interrupts", "iomem", "ioports", "kallsyms", "kcore", "key-users", "keys", "kmsg"),
        *("kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "loadavg", "lock_stat"),
        *("lockdep", "lockdep_chains", "lockdep_stats", "locks", "mdstat", "meminfo", "misc"),
        *("modules", "mpt", "mtd", "mtrr", "pagetypeinfo", "partitions", "powerpc", "ppc64"),
        *("pressure", "profile", "s390dbf", "sched_debug", "schedstat", "scsi", "sgi_uv"),
        *("slabinfo", "softirqs", "spl", "stat", "swaps", "sysinfo", "sysvipc", "timer_list"),
        *("timer_stats", "tty", "uptime", "user_beancounters", "version", "version_signature"),
        *("vmallocinfo", "vmcore", "vmstat", "vz", "xen", "zoneinfo"),
    }
)
"""What kernels may have there, for an engine on another machine. What it lacks, it leaves out."""


def with_read_only_kernel_files(config: JsonObject) -> JsonObject:
    """Return a container's configuration with the kernel's files of /proc mounted read-only."""
    paths = {"ReadonlyPaths": _read_only_paths()}
    return config | {"HostConfig": (config.get("HostConfig") or {}) | paths}


def _read_only_paths() -> list[str]:
    return [f"/proc/{name}" for name in sorted(_ENGINE_DEFAULT | _KNOWN | _names_here())]


def _names_here() -> set[str]:
    """Return what the kernel of this machine, usually the engine's, has. Modules add names."""
    try:
        with os.scandir("/proc") as entries:
            return {
                entry.name
                for entry in entries
                if not entry.name.isdigit() and not entry.is_symlink()
            }
    except OSError:
        return set()
