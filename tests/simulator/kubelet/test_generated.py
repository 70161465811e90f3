"""The generated messages are those of the .proto files beside them: `make proto` was not
forgotten."""

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from mpsd.kubelet.api import deviceplugin_pb2, podresources_pb2

FILES = {"deviceplugin": deviceplugin_pb2.DESCRIPTOR, "podresources": podresources_pb2.DESCRIPTOR}
TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
}


@pytest.mark.parametrize("name", FILES)
def test_the_generated_messages_and_calls_are_those_of_the_file(name: str) -> None:
    text = (Path(deviceplugin_pb2.__file__).parent / f"{name}.proto").read_text()
    assert generated(FILES[name]) == written(re.sub(r"//.*", "", text))


def written(text: str) -> set[str]:
    """Each field and each call of a .proto file, as one line."""
    block, lines = "", set()
    for line in (line.strip() for line in text.splitlines()):
        if opening := re.fullmatch(r"(?:message|service) (\w+) \{\}?", line):
            block = opening[1]
        elif block and line not in {"", "}"}:
            lines.add(f"{block}: {line.removesuffix(';').removesuffix(' {}')}")
    return lines


def generated(file: FileDescriptor) -> set[str]:
    fields = {
        f"{message.name}: {shown(field)}"
        for message in file.message_types_by_name.values()
        for field in message.fields
    }
    calls = {
        f"{service.name}: rpc {call.name}({call.input_type.name}) returns"
        f" ({stream(call)}{call.output_type.name})"
        for service in file.services_by_name.values()
        for call in service.methods
    }
    return fields | calls


def stream(call: object) -> str:
    return "stream " if getattr(call, "server_streaming", False) else ""


def shown(field: FieldDescriptor) -> str:
    message: Descriptor | None = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return f"map<string, string> {field.name} = {field.number}"
    repeated = "repeated " if field.is_repeated else ""
    return (
        f"{repeated}{message.name if message else TYPES[field.type]} {field.name} = {field.number}"
    )
