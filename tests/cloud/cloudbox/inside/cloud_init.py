"""Plays cloud-init, as far as a user-data script sees it.

The order of cloud-init's final stage: per-boot scripts, then at the first boot the user data, as
root, in /, without HOME, with output to /var/log/cloud-init-output.log
(https://docs.cloud-init.io/en/latest/reference/modules.html, Scripts Per Boot and Scripts User). As
cloud-final.service has KillMode=process, what a script leaves running goes on.
"""

import gzip
import json
import os
import pathlib
import subprocess
import time
import urllib.error
import urllib.request

METADATA = "http://169.254.169.254/latest/"
SECONDS = 5
CLOUD = pathlib.Path("/var/lib/cloud")
OUTPUT = pathlib.Path("/var/log/cloud-init-output.log")


def main():
    token = request("api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"})
    headers = {"X-aws-ec2-metadata-token": token.decode()}
    instance = request("meta-data/instance-id", headers=headers).decode()
    name = request("meta-data/local-hostname", headers=headers).decode().partition(".")[0]
    set_host_name(name)
    first = not (CLOUD / "instances" / instance).exists()
    folder = CLOUD / "instances" / instance
    scripts = folder / "scripts"
    if first:
        scripts.mkdir(parents=True)
        (CLOUD / "scripts" / "per-boot").mkdir(parents=True, exist_ok=True)
        (CLOUD / "instance").symlink_to(folder)
        save_user_data(scripts, headers)
    run_all(CLOUD / "scripts" / "per-boot")
    if first:
        run_all(scripts)
    result = pathlib.Path("/run/cloud-init")
    result.mkdir(exist_ok=True)
    (result / "result.json").write_text(json.dumps({"v1": {"errors": [], "datasource": "DataSourceEc2"}}))


def request(path, method="GET", headers=None):
    asked = urllib.request.Request(METADATA + path, method=method, headers=headers or {})
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        return answer.read()


def set_host_name(name):
    pathlib.Path("/etc/hostname").write_text(name + "\n")
    pathlib.Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
    pathlib.Path("/etc/resolv.conf").write_text("")
    subprocess.run(["hostname", name], check=False)


def save_user_data(scripts, headers):
    try:
        data = request("user-data", headers=headers)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return
        raise
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if not data.startswith(b"#!"):
        log("user data is no script (#!): not run")
        return
    script = scripts / "part-001"
    script.write_bytes(data)
    script.chmod(0o700)


def run_all(folder):
    for script in sorted(folder.iterdir()):
        if os.access(script, os.X_OK):
            with open(OUTPUT, "ab") as output:
                code = subprocess.call(
                    [str(script)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/"
                )
            if code:
                log(f"failed to run {script} ({code})")


def log(line):
    with open(OUTPUT, "a") as output:
        output.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} cloud-init: {line}\n")


main()
