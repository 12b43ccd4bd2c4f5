"""What a machine does with packed work, with plain pickle, cloudpickle and the codec's file alone."""

import importlib
import importlib.util
import pickle
import sys
import types

import cloudpickle

with open(sys.argv[1], "rb") as file:
    job = pickle.load(file)
spec = importlib.util.spec_from_file_location("_spotbatch_codec", job["codec"])
codec = importlib.util.module_from_spec(spec)
sys.modules["_spotbatch_codec"] = codec
spec.loader.exec_module(codec)

body = pickle.loads(job["blob"])
for name, members in body["modules"].items():
    sys.modules[name] = types.ModuleType(name)
    for qualname, member in members.items():
        if "." not in qualname:
            setattr(sys.modules[name], qualname, member)


def resolve(module, qualname):
    found = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def pickled(value):
    import io

    target = io.BytesIO()
    pickler = codec.referring_pickler(cloudpickle.Pickler)
    pickler(target, {name: name for name in body["modules"]}).dump(value)
    return target.getvalue()


if job["kind"] == "dotted":
    module, _, name = job["name"].rpartition(".")
    function = getattr(importlib.import_module(module), name)
else:
    function = body["function"]
results = [
    codec.encode(function(codec.decode(kind, data, resolve), **body["kwargs"]), pickled)
    for kind, data in job["items"]
]
with open(sys.argv[2], "wb") as file:
    file.write(pickle.dumps(results))
