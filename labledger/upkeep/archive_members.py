"""Read the members of an archive or a backup in the order that its format demands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from labledger.errors import MalformedJson, SchemaInvalid
from labledger.files.tars import ArchiveDamaged, ArchivedFile
from labledger.records import JsonObject, canonical_json, json_schemas


def next_member(members: Iterator[ArchivedFile], name: str, what: str) -> ArchivedFile:
    """Return the next member, which must have a name.

    `what` names the kind of file, such as ``a backup of a lab``. Raises `ArchiveDamaged`.
    """
    member = next(members, None)
    if member is None or member.name != name:
        raise ArchiveDamaged(f"is not {what}: it does not have {name} in its place")
    return member


def read_manifest(member: ArchivedFile, schema: str, max_bytes: int) -> JsonObject:
    """Return the manifest of a schema such as ``backup_v1``. Raises `ArchiveDamaged`."""
    name = member.name
    if member.size > max_bytes:
        raise ArchiveDamaged(f"has {name} of {member.size:,} bytes")
    try:
        manifest = canonical_json.loads(b"".join(member.chunks))
    except MalformedJson as error:
        raise ArchiveDamaged(f"has {name} that {error}") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    family = schema.rpartition("_v")[0]
    if version != schema and re.fullmatch(rf"{family}_v[0-9]{{1,6}}", str(version)):
        raise ArchiveDamaged(
            f"has the format {version}, and this labledger reads {schema}: install a newer one"
        )
    try:
        json_schemas.require_valid(manifest, schema)
    except SchemaInvalid as error:
        raise ArchiveDamaged(f"has {name} that does not fit {schema}: {error}") from error
    return dict(manifest)
