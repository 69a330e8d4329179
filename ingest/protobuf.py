"""Protobuf messages declared in a few lines of text, without generated code.

Only the fields that are read need declaring: protobuf keeps unknown ones aside. The messages live in a descriptor pool
of their own, so that they cannot clash with another copy of the same schema in the process.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

__all__ = ["DecodeError", "messages"]

_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "i32": _F.TYPE_INT32,
    "i64": _F.TYPE_INT64,
    "u64": _F.TYPE_UINT64,
    "f64": _F.TYPE_DOUBLE,
    "bool": _F.TYPE_BOOL,
    "str": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
}


def messages(package: str, schema: Mapping[str, str]) -> dict[str, Any]:
    """Message classes of a schema `{message: "field number type; ..."}`, proto3.

    A type is a scalar (`i32 i64 u64 f64 bool str bytes`) or a message of the same schema, with a suffix: `*` repeated,
    `?` member of the message's one oneof (called `value`), `{}` map from int64 to it. An enum is read as `i32`.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for field in filter(None, map(str.strip, fields.split(";"))):
            _add_field(message, f".{package}", *field.split())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in schema}


def _add_field(message: Any, package: str, name: str, number: str, kind: str) -> None:
    base = kind.rstrip("*?{}")
    repeated = kind.endswith(("*", "{}"))
    field = message.field.add(name=name, number=int(number), label=_F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL)
    if kind.endswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="value")
        field.oneof_index = 0
    if kind.endswith("{}"):
        entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        _add_field(entry, package, "key", "1", "i64")
        _add_field(entry, package, "value", "2", base)
        field.type, field.type_name = _F.TYPE_MESSAGE, f"{package}.{message.name}.{entry.name}"
    elif base in _SCALARS:
        field.type = _SCALARS[base]
    else:
        field.type, field.type_name = _F.TYPE_MESSAGE, f"{package}.{base}"
