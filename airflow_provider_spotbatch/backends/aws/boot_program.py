"""What an EC2 machine runs before anything of ours is on it: fetches, unpacks and starts the agent.

Travels inside the machine's user data and is run by the image's own Python, as root, with the standard
library alone; the oldest Python that it meets is Amazon Linux 2023's 3.9. Its orders come as JSON in the
file named by its argument (see ``user_data.py``). When it returns, the script around it powers off.

On the machine::

    /opt/spotbatch/agent, packages    virtual environments: the agent's and the workers'
    /opt/spotbatch/python             an interpreter, where the image's own has another minor version
    /opt/spotbatch/boot.log           what this program and the agent print
    /var/lib/spotbatch                the unprivileged user's private folder
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import hashlib
import hmac
import http.client
import json
import os
import platform
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, BinaryIO

ROOT = "/opt/spotbatch"
HOME = "/var/lib/spotbatch"
USER = "spotbatch"
LOG = os.path.join(ROOT, "boot.log")
PROGRAMS = "/usr/bin:/usr/local/bin"
CGROUPS = "/sys/fs/cgroup"
CONSOLES = ("/dev/console", "/var/log/cloud-init-output.log")
METADATA = ("169.254.169.254", 80)

METADATA_SECONDS = 5.0
"""One question to the metadata service, which answers in milliseconds."""

NETWORK_SECONDS = 30.0
AGAIN_SECONDS = 10.0
"""How long a machine waits for its network, and for the credentials of its role: both may come some seconds
after it. What did not come in that time is not waited for as long again."""

CONNECT_SECONDS = 5.0
STORE_SECONDS = 20.0
"""Until the store takes a connection, and its silence in the middle of a request."""

ATTEMPTS = 6
"""Tries of a request in a row that bring nothing."""

FETCH_SECONDS = 400.0
SETUP_SECONDS = 480.0
"""Limits for all archives, and for the setup script: the controller ends a machine that has not reported
within 600 s of its launch."""

END_SECONDS = 30.0
"""How long an agent that was told to end may take."""

AGENT_OOM_SCORE = -900
"""The kernel ends the workers first (they raise theirs), this program and the agent late."""

LOG_BYTES = 8192
"""Of the log, in the report: as many as the agent gives of its own failures."""

PIECE = 1 << 20

unwritten: list[str] = []
"""Lines for which the disk had no room."""

EMPTY = hashlib.sha256(b"").hexdigest()


class BootFailed(Exception):
    """This machine cannot work. The message goes to the task's log."""


class Retry(Exception):
    """A request that may succeed when it is made again."""


def main(orders_file: str) -> int:
    with open(orders_file) as file:
        orders = json.load(file)
    os.unlink(orders_file)
    metadata = Metadata()
    store = Store(orders["store"], metadata.credentials)
    instance = ""
    try:
        instance = metadata.instance()
        log(f"machine {instance}, {platform.machine()}, Python {platform.python_version()}")
        python = prepare(orders, store)
        run_setup(orders, store)
        code = run_agent(orders, instance, python)
    except BootFailed as failure:
        reason = str(failure)
    except Exception as error:  # noqa: BLE001 - whatever it is, the report tells it
        reason = explained(error)
    else:
        if code == 0:
            log("the agent ended")
            return 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        reason = f"the agent ended with {how}"
    log("failed: " + reason)
    tell_console(reason)
    tell_failure(orders, store, instance, reason)
    return 1


# --- what the machine needs ---------------------------------------------------------------------------


def prepare(orders: dict[str, Any], store: Store) -> str:
    """Have the user, the environments and an interpreter for them; the agent's interpreter."""
    architecture = {"x86_64": "x86_64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    archives = orders["archives"].get(architecture)
    if archives is None:
        raise BootFailed(
            f"there is no environment for machines of {architecture}, only for "
            f"{' and '.join(sorted(orders['archives'])) or 'none'}: limit item_resources.architectures"
        )
    make_user()
    wanted = {part: archives[part] for part in ("agent", "packages") if archives.get(part)}
    version = orders["python_version"]
    base = image_python(version)
    if base is None:
        if not archives.get("interpreter"):
            raise BootFailed(
                f"the image has no Python {version} (its own is {platform.python_version()}), and none was "
                f"sent along: use an image that has it, or run 'uv python install {version}' where Airflow "
                "runs, so that it can be sent"
            )
        wanted["python"] = archives["interpreter"]
    fetch_all(store, wanted)
    if base is None:
        base = os.path.join(ROOT, "python", "bin", f"python{version}")
        check_interpreter(base)
    for part in ("agent", "packages"):
        make_environment(os.path.join(ROOT, part), base)
    return os.path.join(ROOT, "agent", "bin", "python")


def make_user() -> None:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", HOME]
        run_or_fail([*command, "--shell", "/bin/sh", USER], f"the user {USER} cannot be made")
    os.makedirs(HOME, 0o700, exist_ok=True)
    owner = pwd.getpwnam(USER)
    os.chown(HOME, owner.pw_uid, owner.pw_gid)
    os.chmod(HOME, 0o700)


def image_python(version: str) -> str | None:
    """The image's own interpreter of that minor version."""
    found = shutil.which("python" + version, path=PROGRAMS)
    return None if found is None else os.path.realpath(found)


def check_interpreter(python: str) -> None:
    """An interpreter from elsewhere may lack libraries here."""
    run_or_fail(
        [python, "-I", "-c", "import ctypes, hashlib, lzma, ssl, zlib"],
        "the interpreter that was sent does not run on this image",
    )


def make_environment(folder: str, base: str) -> None:
    """Make a virtual environment of an unpacked folder, or an empty one."""
    programs = os.path.join(folder, "bin")
    os.makedirs(programs, 0o755, exist_ok=True)
    with open(os.path.join(folder, "pyvenv.cfg"), "w") as file:
        file.write(f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        os.symlink(base, os.path.join(programs, name))


def fetch_all(store: Store, wanted: dict[str, Any]) -> None:
    """Fetch and unpack archives side by side: part → sha256."""
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as threads:
        running = [
            threads.submit(fetch_and_unpack, store, part, sha256, started + FETCH_SECONDS)
            for part, sha256 in sorted(wanted.items())
        ]
    for each in running:
        each.result()
    log(f"{', '.join(sorted(wanted))} unpacked after {time.monotonic() - started:.2f} s")


def fetch_and_unpack(store: Store, part: str, sha256: str, deadline: float) -> None:
    packed = os.path.join(ROOT, part + ".tar.gz")
    store.fetch("blobs/" + sha256, packed, sha256, deadline)
    folder = os.path.join(ROOT, part)
    with tarfile.open(packed, "r:gz") as archive:
        # The bytes are those that the Airflow side made; newer Pythons ask for a word on trust.
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        archive.extractall(folder)  # noqa: S202
    os.unlink(packed)


def run_setup(orders: dict[str, Any], store: Store) -> None:
    """Run the user's setup script as root."""
    if not orders["setup"]:
        return
    script = os.path.join(ROOT, "setup.sh")
    store.fetch("blobs/" + orders["setup"], script, orders["setup"], time.monotonic() + FETCH_SECONDS)
    with open(script, "rb") as file:
        text = file.read()
    os.chmod(script, 0o700)
    command = [script] if text.startswith(b"#!") else ["/bin/bash", "-e", script]
    started = time.monotonic()
    log("setup script:")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd="/", start_new_session=True)
    try:
        code = process.wait(SETUP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise BootFailed(f"environment.setup did not end within {SETUP_SECONDS:.0f} s") from None
    if code:
        raise BootFailed(f"environment.setup failed with exit code {code}")
    log(f"setup script ended after {time.monotonic() - started:.2f} s")


# --- the agent ----------------------------------------------------------------------------------------


def run_agent(orders: dict[str, Any], instance: str, python: str) -> int:
    """Be the agent's parent until it ends; its exit code, negative for a signal that was not ours."""
    owner = pwd.getpwnam(USER)
    packages = os.path.join(ROOT, "packages", "bin")
    boot = {
        **orders["boot"],
        "instance": instance,
        "folder": os.path.join(HOME, "agent"),
        "python": os.path.join(packages, "python"),
    }
    group = make_cgroup(owner.pw_uid, owner.pw_gid)

    def become_user() -> None:
        with contextlib.suppress(PermissionError):  # a container's root may not
            write("/proc/self/oom_score_adj", str(AGENT_OOM_SCORE))
        if group is not None:
            with contextlib.suppress(OSError):
                write(os.path.join(group, "cgroup.procs"), "0")
        os.initgroups(USER, owner.pw_gid)
        os.setgid(owner.pw_gid)
        os.setuid(owner.pw_uid)
        os.umask(0o077)

    agent = subprocess.Popen(
        [python, "-I", "-m", "airflow_provider_spotbatch.agent"],
        stdin=subprocess.PIPE,
        cwd=HOME,
        env={
            **orders["env"],
            "HOME": HOME,
            "USER": USER,
            "LOGNAME": USER,
            "LANG": "C.UTF-8",
            "PATH": packages + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        },
        start_new_session=True,
        preexec_fn=become_user,
    )
    told: list[int] = []

    def pass_on(number: int, _: object) -> None:
        told.append(number)
        end_in_time(agent)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    assert agent.stdin is not None
    with contextlib.suppress(BrokenPipeError), agent.stdin as file:  # its exit code tells then
        file.write(json.dumps(boot).encode())
    log("the agent starts")
    code = agent.wait()
    return 0 if told and code < 0 else code


def end_in_time(agent: subprocess.Popen[bytes]) -> None:
    agent.terminate()
    killer = threading.Timer(END_SECONDS, agent.kill)
    killer.daemon = True
    killer.start()


def make_cgroup(user: int, group: int) -> str | None:
    """A cgroup for the agent and all that it starts, which leaves the system some memory; None where the
    machine has no cgroups of version 2 to give."""
    folder = os.path.join(CGROUPS, USER)
    try:
        with open(os.path.join(CGROUPS, "cgroup.controllers")) as file:
            if "memory" not in file.read().split():
                return None
        write(os.path.join(CGROUPS, "cgroup.subtree_control"), "+memory")
        os.makedirs(folder, exist_ok=True)
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        write(os.path.join(folder, "memory.max"), str(int(total - max(128 << 20, total * 0.02))))
        for name in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(os.path.join(folder, name), user, group)
    except OSError as error:
        log(f"no cgroup: {error}")
        return None
    return folder


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# --- failures -----------------------------------------------------------------------------------------


def explained(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full: ask for more in item_resources.disk_gb"
    import traceback

    log("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    return f"{type(error).__name__}: {error}"


def tell_failure(orders: dict[str, Any], store: Store, instance: str, reason: str) -> None:
    """Write the machine's last report, from which the controller takes the reason and the log.

    The agent's own report is kept where it wrote one: what it says of its chunks stays true. One that told
    its end itself is left as it is.
    """
    name = orders["report"].replace("{instance}", instance)
    try:
        if not instance:
            raise BootFailed("the machine's name is not known")
        found = store.read(name)
        report = (
            json.loads(found.decode())
            if found is not None
            else {
                "format": 1,
                "instance": instance,
                "launch": orders["boot"]["launch"],
                "memory_class": orders["boot"]["memory_class"],
                "slots": orders["boot"]["slots"],
                "sequence": 0,
                "state": "booting",
                "ended": [],
                "running": [],
                "held": [],
            }
        )
        if report["state"] == "ended":
            return
        if report["state"] == "booting":
            report["boot_log"] = last_lines()
        report.update(state="ended", reason=reason, sequence=report["sequence"] + 1)
        store.write(name, json.dumps(report).encode())
    except Exception as error:  # noqa: BLE001 - nothing is left to be done about it
        log(f"the reason cannot be told in the store: {error}")
        tell_console(f"the reason cannot be told in the store: {error}")


def last_lines() -> str:
    with open(LOG, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read().decode(errors="replace") + "".join(unwritten)


def tell_console(line: str) -> None:
    """What the cloud keeps of a machine's console can be read when nothing else can."""
    for place in CONSOLES:
        with contextlib.suppress(OSError), open(os.open(place, os.O_WRONLY | os.O_APPEND), "w") as console:
            console.write(f"spotbatch: {line}\n")


def run_or_fail(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BootFailed(f"{what}: {error}") from None
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()[-500:]
        raise BootFailed(f"{what}: {said}")


def log(line: str) -> None:
    text = time.strftime("%Y-%m-%d %H:%M:%S ", time.gmtime()) + line + "\n"
    try:
        os.write(1, text.encode())
    except OSError:
        unwritten.append(text)


# --- the metadata service and the store ---------------------------------------------------------------


class Metadata:
    """The instance metadata service, version 2 (EC2 User Guide, "Use the Instance Metadata Service")."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._credentials: dict[str, Any] = {}
        self._known_until = 0.0
        self._deadline = time.monotonic() + NETWORK_SECONDS

    def instance(self) -> str:
        return self._patiently("meta-data/instance-id", "the metadata service does not answer")

    def credentials(self) -> dict[str, Any]:
        """``AccessKeyId``, ``SecretAccessKey`` and ``Token`` of the machine's role. They are renewed long
        before they end, so a few minutes' memory is safe."""
        with self._lock:
            if time.monotonic() > self._known_until:
                role = self._patiently(
                    "meta-data/iam/security-credentials/",
                    "the machine has no instance profile, or its role gives no credentials: check "
                    "'instance_profile' of the connection",
                ).split()[0]
                text = self._patiently(
                    "meta-data/iam/security-credentials/" + role, f"the role {role} gives no credentials"
                )
                self._credentials = json.loads(text)
                self._known_until = time.monotonic() + 120
            return self._credentials

    def _patiently(self, path: str, otherwise: str) -> str:
        deadline = max(self._deadline, time.monotonic() + AGAIN_SECONDS)
        while True:
            try:
                return self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token()})
            except (OSError, http.client.HTTPException, Retry) as error:
                if time.monotonic() > deadline:
                    raise BootFailed(f"{otherwise} ({error})") from None
                time.sleep(random.uniform(0.5, 1.0))

    def _token(self) -> str:
        return self._ask("PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"})

    def _ask(self, method: str, path: str, headers: dict[str, Any]) -> str:
        connection = http.client.HTTPConnection(*METADATA, timeout=METADATA_SECONDS)
        try:
            connection.request(method, "/latest/" + path, headers=headers)
            answer = connection.getresponse()
            body = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise Retry(f"{path}: HTTP status {answer.status}")
        return body


class Store:
    """Objects below one prefix of an S3 bucket. ``place``: ``url`` of the prefix, ``region``."""

    def __init__(self, place: dict[str, Any], credentials: Callable[[], dict[str, Any]]) -> None:
        self._url = urllib.parse.urlsplit(place["url"])
        self._region = place["region"]
        self._credentials = credentials

    def fetch(self, name: str, path: str, sha256: str, deadline: float) -> None:
        """Fetch an object into a file; what was interrupted goes on where it stopped."""
        digest = hashlib.sha256()
        failures = 0
        with open(path, "wb") as file:
            while True:
                before = file.tell()
                try:
                    self._fetch_from(name, file, digest)
                    break
                except (OSError, http.client.HTTPException, Retry) as error:
                    if getattr(error, "errno", None) == errno.ENOSPC:
                        raise
                    failures = 1 if file.tell() > before else failures + 1
                    if failures >= ATTEMPTS or time.monotonic() > deadline:
                        raise BootFailed(
                            f"{name} cannot be fetched from the store: {error}. Machines need a route to "
                            "S3: check 'subnets', 'security_groups' and 'public_address' of the connection, "
                            "and the S3 endpoint of the network"
                        ) from None
                    pause(failures)
        if digest.hexdigest() != sha256:
            raise BootFailed(f"{name} was changed after it was written: clear the task to submit it again")

    def _fetch_from(self, name: str, file: BinaryIO, digest: Any) -> None:
        done = file.tell()
        with self._request("GET", name, ranged_from=done) as answer:
            if answer.status not in (200, 206):
                self._check_there("GET", name, answer)
                raise BootFailed(f"{name} is missing in the store: clear the task to submit it again")
            if answer.status == 200 and done:
                raise BootFailed(f"the store gave the whole of {name} where a part was asked for")
            left = int(answer.getheader("Content-Length", ""))
            while left:
                piece = answer.read(min(PIECE, left))
                if not piece:
                    raise Retry("the connection broke off")
                file.write(piece)
                digest.update(piece)
                left -= len(piece)

    def read(self, name: str) -> bytes | None:
        return self._ask("GET", name, b"")

    def write(self, name: str, body: bytes) -> None:
        self._ask("PUT", name, body)

    def _ask(self, method: str, name: str, body: bytes) -> bytes | None:
        failures = 0
        while True:
            try:
                with self._request(method, name, body) as answer:
                    if answer.status == 200:
                        return answer.read()
                    self._check_there(method, name, answer)
                    return None
            except (OSError, http.client.HTTPException, Retry) as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise BootFailed(f"{method} {name}: {error}") from None
                pause(failures)

    def _check_there(self, method: str, name: str, answer: http.client.HTTPResponse) -> None:
        """Return if a refusal means that there is no such object."""
        said = answer.read(2000).decode(errors="replace")
        if answer.status == 404 and "NoSuchKey" in said:
            return
        if answer.status >= 500 or answer.status == 429:
            raise Retry(f"HTTP status {answer.status}")
        allowed = {"GET": "s3:GetObject and s3:ListBucket", "PUT": "s3:PutObject"}[method]
        raise BootFailed(
            f"{method} {name} was refused with HTTP status {answer.status}: allow {allowed} to the role of "
            f"the instance profile, and check the region of the store ({self._region}). S3 says: {said}"
        )

    def _request(self, method: str, name: str, body: bytes = b"", ranged_from: int = 0) -> Answer:
        path = urllib.parse.quote(self._url.path.rstrip("/") + "/" + name, safe="/-_.~")
        headers = signed(method, self._url.netloc, path, body, self._region, self._credentials(), time.time())
        if ranged_from:
            headers["Range"] = f"bytes={ranged_from}-"
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.netloc, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
            connection.sock.settimeout(STORE_SECONDS)
            connection.request(method, path, body, headers)
            return Answer(connection)
        except BaseException:
            connection.close()
            raise


class Answer:
    """A response whose connection is closed with it."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()

    def __enter__(self) -> http.client.HTTPResponse:
        return self._response

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def signed(
    method: str, host: str, path: str, body: bytes, region: str, credentials: dict[str, Any], now: float
) -> dict[str, Any]:
    """Headers of a request to S3 without a query, by Signature Version 4 (Amazon S3 API reference,
    "Authenticating Requests"). ``path`` is quoted; ``now`` in seconds since the epoch."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    headers = {
        "host": host,
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest() if body else EMPTY,
        "x-amz-date": moment,
        "x-amz-security-token": credentials["Token"],
    }
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        [
            method,
            path,
            "",
            *(f"{name}:{headers[name]}" for name in sorted(headers)),
            "",
            names,
            headers["x-amz-content-sha256"],
        ]
    )
    scope = "/".join([moment[:8], region, "s3", "aws4_request"])
    key = ("AWS4" + credentials["SecretAccessKey"]).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials['AccessKeyId']}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    )
    return headers


def pause(failures: int) -> None:
    time.sleep(random.uniform(0.5, 1.0) * min(8.0, 0.5 * 2.0**failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
