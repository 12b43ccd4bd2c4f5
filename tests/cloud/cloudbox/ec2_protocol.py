"""EC2's Query protocol, from the server's side, by botocore's own model of the service.

https://smithy.io/2.0/aws/protocols/aws-ec2-query-protocol.html
"""

from __future__ import annotations

import datetime
import uuid
from functools import cache
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


@cache
def _model() -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model("ec2", "service-2"))


def decode(operation: str, body: bytes) -> dict[str, Any]:
    """The operation's parameters, as boto3 would be given them."""
    tree: dict[str, Any] = {}
    for name, value in parse_qsl(body.decode(), keep_blank_values=True):
        *parents, last = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    parameters: dict[str, Any] = _decoded(_model().operation_model(operation).input_shape, tree)
    return parameters


def _decoded(shape: Any, tree: Any) -> Any:
    if shape.type_name == "structure":
        sent = {name: _query_name(name, member) for name, member in shape.members.items()}
        return {name: _decoded(shape.members[name], tree[key]) for name, key in sent.items() if key in tree}
    if shape.type_name == "list":
        return [_decoded(shape.member, tree[index]) for index in sorted(tree, key=int)]
    if shape.type_name in ("integer", "long"):
        return int(tree)
    if shape.type_name in ("float", "double"):
        return float(tree)
    if shape.type_name == "boolean":
        return tree == "true"
    return tree


def _query_name(name: str, member: Any) -> str:
    if "queryName" in member.serialization:
        return str(member.serialization["queryName"])
    name = member.serialization.get("name", name)
    return name[0].upper() + name[1:]


def encode(operation: str, result: dict[str, Any]) -> bytes:
    """The operation's answer, from what boto3 is to return."""
    root = ElementTree.Element(f"{operation}Response", xmlns=NAMESPACE)
    ElementTree.SubElement(root, "requestId").text = str(uuid.uuid4())
    _encode(_model().operation_model(operation).output_shape, result, root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _encode(shape: Any, value: Any, into: ElementTree.Element) -> None:
    if shape.type_name == "structure":
        for name, part in value.items():
            member = shape.members[name]
            _encode(member, part, ElementTree.SubElement(into, member.serialization.get("name", name)))
    elif shape.type_name == "list":
        for part in value:
            _encode(shape.member, part, ElementTree.SubElement(into, "item"))
    else:
        into.text = _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return str(value)
