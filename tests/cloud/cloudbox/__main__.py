"""A box to try by hand: stays until Ctrl-D, and takes commands about its machines."""

from __future__ import annotations

import cmd
import json
import shlex
from collections.abc import Callable

from tests.cloud.cloudbox.account import connections, make_account
from tests.cloud.cloudbox.box import Cloudbox
from tests.cloud.cloudbox.roots import SUITES, root_of


class Console(cmd.Cmd):
    """A machine is named by any unique beginning of its id, with or without i-."""

    prompt = "cloudbox> "

    def __init__(self, box: Cloudbox) -> None:
        super().__init__()
        self._box = box
        self._verbs: dict[str, Callable[[str], object]] = {
            "vanish": box.vanish,
            "freeze": box.freeze,
            "thaw": box.thaw,
            "cut": box.cut,
            "restore": box.restore,
            "reboot": box.reboot,
            "rebalance": box.recommend_rebalance,
            "console": lambda instance: print(box.console(instance)),
        }

    def do_machines(self, line: str) -> None:
        """machines: those that run"""
        print("\n".join(self._box.machines()) or "none runs")

    def do_notice(self, line: str) -> None:
        """notice MACHINE [SECONDS]: it will be taken back, by default after 120 seconds"""
        machine, *seconds = line.split()
        self._box.notice(self._found(machine), float(seconds[0]) if seconds else 120.0)

    def do_run(self, line: str) -> None:
        """run MACHINE COMMAND…: inside the machine, as root"""
        machine, *command = shlex.split(line)
        done = self._box.run(self._found(machine), command)
        print(done.stdout + done.stderr, end="")

    def do_refuse(self, line: str) -> None:
        """refuse OPERATION CODE [TIMES]: calls of the API get an error, until relent"""
        operation, code, *times = line.split()
        self._box.refuse(operation, code, times=int(times[0]) if times else None)

    def do_refuse_machines(self, line: str) -> None:
        """refuse_machines CODE [TYPES]: launches get an error for each matching pool, until relent"""
        self._box.refuse_machines(*line.split())

    def do_relent(self, line: str) -> None:
        """relent: no refusals any more"""
        self._box.relent()

    def do_EOF(self, line: str) -> bool:
        """Ctrl-D: end the box"""
        return True

    def default(self, line: str) -> None:
        """The verbs that only name a machine."""
        verb, *arguments = line.split()
        if verb in self._verbs and len(arguments) == 1:
            self._verbs[verb](self._found(arguments[0]))
        else:
            print(f"not understood: {line}. With a machine: {', '.join(self._verbs)}; help lists others")

    def onecmd(self, line: str) -> bool:
        try:
            return bool(super().onecmd(line))
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            print(error)
            return False

    def emptyline(self) -> bool:
        return False

    def _found(self, name: str) -> str:
        known, start = self._box.instances(), name.removeprefix("i-")
        matching = [each for each in known if each.removeprefix("i-").startswith(start)]
        if len(matching) != 1:
            raise ValueError(f"{name} is {'no machine' if not matching else 'any of ' + ', '.join(matching)}")
        return matching[0]


def main() -> None:
    for suite in SUITES:
        print(f"root file system of {suite}: {root_of(suite)}")
    with Cloudbox() as box:
        print(f"\nA cloud runs at {box.endpoint_url}, region {box.region}. In another terminal:\n")
        for name, value in box.environment().items():
            print(f"export {name}={value}")
        print("\nand for Airflow:\n")
        for name, connection in connections(box, make_account(box)).items():
            print(f"export AIRFLOW_CONN_{name.upper()}={shlex.quote(json.dumps(connection))}")
        print("\nTo go the way of docs/aws.md, leave the last one out, and name the other:")
        print("  spotbatch setup aws --aws-conn-id aws_cloudbox")
        print("\nHere: help lists commands; Ctrl-D ends the box and everything in it.\n")
        Console(box).cmdloop()


main()
