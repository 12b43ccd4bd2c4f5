"""What cloud-init runs on a machine at its first boot. Pure: boot data → text of at most 16 KB.

The order matters: first the timer that ends the machine whatever else happens, then what ends it at any
later boot, and only then the boot program, which fetches and starts the agent.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_spotbatch.job.boot import Boot

_SCRIPT = r"""#!/bin/bash
# Machine of SpotBatch run @tag@. Log: /opt/spotbatch/boot.log
umask 077
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Orderly at first; at once if that hangs. It outlives this script: cloud-final.service has KillMode=process.
cat >/run/spotbatch-power-off <<'END'
#!/bin/bash
{ echo -1000 >/proc/self/oom_score_adj; } 2>/dev/null
sleep "$1"
shutdown -h now
sleep 30
poweroff -f
sleep 10
poweroff -f -f
END
power_off_after() { setsid bash /run/spotbatch-power-off "$1" </dev/null >/dev/null 2>&1 & }
power_off_after @lifetime@

if [ -e /opt/spotbatch ]; then  # this machine has booted before
  power_off_after 0
  exit
fi
mkdir -m 755 /opt/spotbatch
mkdir -p /var/lib/cloud/scripts/per-boot
cat >/var/lib/cloud/scripts/per-boot/spotbatch <<'END'
#!/bin/bash
shutdown -h now
sleep 30
poweroff -f
END
chmod 700 /var/lib/cloud/scripts/per-boot/spotbatch

cd /opt/spotbatch || power_off_after 0
base64 -d <<'END' | gzip -d >boot_program.py
@program@
END
base64 -d <<'END' | gzip -d >orders.json
@orders@
END
# shellcheck disable=SC2016 # the inner shell expands it
setsid bash -c '
  { echo -1000 >/proc/self/oom_score_adj; } 2>/dev/null
  umask 022
  python3 -I boot_program.py orders.json || for console in /dev/console /var/log/cloud-init-output.log; do
    [ ! -w $console ] || tail -n 20 boot.log >>$console  # also where there is no Python to tell anything
  done
  exec bash /run/spotbatch-power-off 0
' </dev/null >boot.log 2>&1 &
"""

_LINE = 120
"""Characters of base64 in a line: a script of a few long lines is unpleasant to look at."""


def user_data(boot: Boot) -> str:
    """The script for machines that are told ``boot``: its instance, folder and interpreter are filled in on
    the machine.

    ``boot.store`` is ``s3://bucket/prefix``, with ``region`` and perhaps ``endpoint`` in ``store_options``.
    """
    orders = {
        "boot": json.loads(boot.to_text()),
        "report": boot.of_run.report("{instance}"),
        "store": _place(boot.store, boot.store_options),
        "archives": boot.archives,
        "python_version": boot.python_version,
        "setup": boot.setup,
        "env": _sdk_environment(boot.backend_options),
    }
    values = {
        "tag": boot.of_run.tag,
        "lifetime": str(math.ceil(boot.lifetime)),
        "program": _program(),
        "orders": _packed(json.dumps(orders, separators=(",", ":")).encode()),
    }
    script = _SCRIPT
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    return script


def _sdk_environment(place: dict[str, Any]) -> dict[str, str]:
    """What leads any SDK that items use to the same region, and to the same emulator of Amazon if it is one
    (obstore asks to be told that it speaks HTTP there)."""
    if not place.get("endpoint_url"):
        return {"AWS_DEFAULT_REGION": place["region"]}
    return {
        "AWS_DEFAULT_REGION": place["region"],
        "AWS_ENDPOINT_URL": place["endpoint_url"],
        "AWS_ALLOW_HTTP": "true",
    }


def _place(store: str, options: dict[str, Any]) -> dict[str, str]:
    """Where the store's objects are. A bucket with dots in its name does not match the certificate of S3,
    and emulators have no names for buckets: there the bucket stands in the path."""
    parts = urlsplit(store)
    bucket, prefix, region = parts.netloc, parts.path.strip("/"), str(options["region"])
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    if options.get("endpoint"):
        url = f"{str(options['endpoint']).rstrip('/')}/{bucket}"
    elif "." in bucket:
        url = f"https://s3.{region}.{domain}/{bucket}"
    else:
        url = f"https://{bucket}.s3.{region}.{domain}"
    return {"url": f"{url}/{prefix}", "region": region}


@lru_cache(maxsize=1)
def _program() -> str:
    return _packed(files(__package__).joinpath("boot_program.py").read_bytes())


def _packed(data: bytes) -> str:
    text = base64.b64encode(gzip.compress(data, mtime=0)).decode()
    return "\n".join(text[start : start + _LINE] for start in range(0, len(text), _LINE))
