"""DescribeInstanceTypes without those that the box's host could not run: their processor is another."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.cloud.cloudbox.calls import Answer, Call, Forward
from tests.cloud.cloudbox.images import ARCHITECTURE


def describe_instance_types(call: Call, forward: Forward) -> Answer:
    answer = forward(call)
    if answer.status != 200:
        return answer
    root = ElementTree.fromstring(answer.body)
    for types in root.findall("{*}instanceTypeSet"):
        for shown in list(types):
            runs = shown.iterfind("{*}processorInfo/{*}supportedArchitectures/{*}item")
            if ARCHITECTURE not in [element.text for element in runs]:
                types.remove(shown)
    return Answer(200, bytes(ElementTree.tostring(root, encoding="utf-8")), answer.headers)
