"""Which limits an engine enforces, how it describes a container, and which files containers share.

Engines with Docker's API differ in what they enforce. Only this module tells Docker and Podman
apart, by the engine's own description. The description may be wrong, so preflight tests limits in a
container.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from labledger.records import JsonObject

_LIMITS = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpus": "CpuCfsQuota"}
"""Limits of `runtime.resources`, and the engine's fact about each."""
_CONTAINERD_STORE = ["driver-type", "io.containerd.snapshotter.v1"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine's description of itself."""

    product: str
    """`Docker` or `Podman`."""
    version: str
    storage_driver: str
    cgroup_version: str
    is_rootless: bool
    default_runtime: str
    oci_runtimes: tuple[str, ...]
    """The OCI runtimes that a container can name."""
    unenforced: tuple[str, ...]
    """The limits of `runtime.resources` that the engine says it cannot enforce."""
    ignores_storage: bool
    """True if the engine accepts a limit of a container's own file system, and ignores it."""

    @classmethod
    def of(cls, info: JsonObject) -> Self:
        """Return the facts in an answer of `Engine.info`."""
        is_podman = "BuildahVersion" in info
        is_rootless = bool(info.get("Rootless")) or "name=rootless" in (
            info.get("SecurityOptions") or ()
        )
        cgroup_version = str(info.get("CgroupVersion") or 1)
        # Rootless Podman claims to enforce every limit, and ignores them all.
        has_no_groups = is_rootless and cgroup_version == "1"
        # With version 2, Podman looks for the CPU controller at its place in version 1.
        denies_quota = is_podman and cgroup_version == "2"
        corrected_info = info | {"CpuCfsQuota": True} if denies_quota else info
        default = str(info.get("DefaultRuntime") or "")
        # Podman lists all runtimes that it knows, but ignores the name in a container's settings.
        runtimes = [default] if is_podman else sorted(info.get("Runtimes") or {})
        return cls(
            product="Podman" if is_podman else "Docker",
            version=str(info["ServerVersion"]),
            storage_driver=str(info.get("Driver")),
            cgroup_version=cgroup_version,
            is_rootless=is_rootless,
            default_runtime=default,
            oci_runtimes=tuple(runtimes),
            unenforced=tuple(
                name
                for name, key in _LIMITS.items()
                if has_no_groups or corrected_info.get(key) is False
            ),
            # Docker 29 keeps images in containerd, whose snapshots have no quotas.
            ignores_storage=_CONTAINERD_STORE in (info.get("DriverStatus") or ()),
        )

    def __str__(self) -> str:
        rootless = "rootless " if self.is_rootless else ""
        return f"{rootless}{self.product} {self.version}"

    @property
    def details(self) -> str:
        """The engine with its storage driver and control group version."""
        return f"{self}, storage driver {self.storage_driver}, cgroup v{self.cgroup_version}"

    @property
    def shortcoming(self) -> str | None:
        """A clause about the limits that the engine says it cannot enforce, or None."""
        if not self.unenforced:
            return None
        return f"{self} with cgroup v{self.cgroup_version} cannot limit {_listed(self.unenforced)}"

    def say_ignored(self, limits: Collection[str]) -> str:
        """Return a clause about limits that a container lacked."""
        listed = _listed([name for name in _LIMITS if name in limits])
        return f"{self} started a container without enforcing its limits of {listed}"


def folders_of_own_files(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that the engine itself changes in every container.

    `headers` belong to the engine's list of changes. Podman leaves the files that it makes out of
    that list, such as /etc/hosts, but lists their folder.
    """
    return ("/etc",) if is_podman(headers) else ()


def is_podman(headers: Mapping[str, str]) -> bool:
    """Return whether an answer with these headers comes from Podman."""
    return "Libpod-API-Version" in headers


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


_ENGINE_DEFAULT = frozenset({"bus", "fs", "irq", "sys", "sysrq-trigger"})
"""The files of /proc that engines make read-only by default."""
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
"""Files of /proc in various kernels, for an engine on another machine. Engines skip missing
ones."""


def with_read_only_kernel_files(config: JsonObject) -> JsonObject:
    """Return a container's configuration with the kernel's files of /proc mounted read-only.

    A `chmod` of such a file by root in one container affects all others, and outlives the
    container. Files of processes and of network namespaces are not shared. The engine makes
    /proc/sys and /sys read-only by itself.
    """
    paths = [f"/proc/{name}" for name in sorted(_ENGINE_DEFAULT | _KNOWN | _names_here())]
    host_config = (config.get("HostConfig") or {}) | {"ReadonlyPaths": paths}
    return config | {"HostConfig": host_config}


def _names_here() -> set[str]:
    """Return the files that this machine's kernel has in /proc. Loaded modules add some."""
    try:
        with os.scandir("/proc") as entries:
            return {
                entry.name
                for entry in entries
                if not entry.name.isdigit() and not entry.is_symlink()
            }
    except OSError:
        return set()


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of a container as the engine reports it."""

    container_id: str
    status: str
    """`created`, `running`, `exited`, …"""
    exit_status: int
    out_of_memory: bool
    started_at: str
    finished_at: str
    labels: dict[str, str]
    upper_dir: str | None = None
    """The host folder with the container's changes to its image, if this user can read it."""
    lower_dirs: tuple[str, ...] = ()
    """The host folders of the image's layers, newest first. Empty if the driver has none."""
    mounts: tuple[str, ...] = ()
    """The mount points in the container."""

    @classmethod
    def of(cls, attributes: JsonObject) -> Self:
        """Return the state in the engine's answer to an inspection."""
        state, driver = attributes["State"], attributes.get("GraphDriver") or {}
        return cls(
            container_id=attributes["Id"],
            status=state["Status"],
            exit_status=int(state["ExitCode"]),
            out_of_memory=bool(state.get("OOMKilled")),
            started_at=state["StartedAt"],
            finished_at=state["FinishedAt"],
            labels=attributes["Config"]["Labels"] or {},
            upper_dir=_readable_upper_dir(driver),
            lower_dirs=_lower_dirs(driver),
            mounts=tuple(str(mount["Destination"]) for mount in attributes.get("Mounts") or ()),
        )

    @property
    def has_started(self) -> bool:
        return not self.started_at.startswith("0001-")

    @property
    def has_ended(self) -> bool:
        return self.status in {"exited", "dead"}


def _readable_upper_dir(driver: JsonObject) -> str | None:
    """Return the folder with a container's changes to its image, if this user can read it.

    Only overlay drivers have one.
    """
    folder = (driver.get("Data") or {}).get("UpperDir")
    return folder if folder and os.access(folder, os.R_OK | os.X_OK) else None


def _lower_dirs(driver: JsonObject) -> tuple[str, ...]:
    """Return the folders of the image's layers, newest first, of an overlay driver."""
    return tuple(filter(None, ((driver.get("Data") or {}).get("LowerDir") or "").split(":")))


def label_filter(labels: Mapping[str, str | None]) -> list[str]:
    """Return the engine's filter for objects with all of `labels`. None matches any value."""
    return [key if value is None else f"{key}={value}" for key, value in labels.items()]


def seconds_of(moment: object) -> float:
    """Return a time of the engine (a number or text) in seconds since 1970, or 0 if unknown."""
    if isinstance(moment, int | float):
        return float(moment)
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return 0.0
