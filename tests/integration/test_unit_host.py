"""The unit on real hosts under systemd: what systemd makes of it, with a simulated engine."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from opsctl.bench.traffic import Outcome, stream_once
from tests.support.hosts import Distribution, Host, Python, systemd_host, wheelhouse
from tests.support.server import wait_until
from tests.support.simulated import configuration, job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""The first host ever has its root filesystem built, and its wheels."""

PYTHON: dict[Distribution, Python] = {"bookworm": "3.11", "trixie": "3.13"}
OPSCTL = "/opt/opsctl/bin/opsctl"
QUICK = "[Service]\nRestartSec=300ms\n"
PORT = 8000


@dataclass
class Service:
    """opsctl on a host: laid out, installed and asked as an operator would."""

    host: Host
    folder: Path
    name: str = "opsctl"
    config: str = "/etc/opsctl/opsctl.yaml"
    more: list[str] = field(default_factory=list)

    def configure(self, **changes: Any) -> None:
        """Write the configuration; `serve` and `baseline` are as for a local instance."""
        serve = {"listen": f"127.0.0.1:{PORT}", **changes.pop("serve", {})}
        path = configuration(self.folder / "opsctl.yaml", serve=serve, **changes)
        # Whoever serves must be able to read it; a umask of this machine must not decide.
        self.host.write(self.config, path.read_text())

    def install(self, drop_in: str = "") -> None:
        """Install the unit, with another drop-in behind it."""
        self.opsctl("unit", "install", "--config", self.config, *self.more)
        folder = f"/etc/systemd/system/{self.name}.service.d"
        self.host.write(f"{folder}/90-test.conf", QUICK + drop_in)
        self.host.run(["systemctl", "daemon-reload"])

    def opsctl(self, *arguments: str, check: bool = True) -> str:
        return self.host.run([OPSCTL, *arguments], check=check, timeout=120).stdout

    def start(self) -> None:
        """Start it, and wait until systemd says that it is ready."""
        self.systemctl("start", timeout=120)

    def systemctl(self, verb: str, *, check: bool = True, timeout: float = 60) -> int:
        done = self.host.run(["systemctl", verb, self.name], check=check, timeout=timeout)
        return done.returncode

    def property(self, name: str) -> str:
        shown = ["systemctl", "show", "--value", "-p", name, self.name]
        return self.host.run(shown).stdout.strip()

    def status(self) -> dict[str, Any]:
        state = "/var/lib/opsctl" + self.name.removeprefix("opsctl").replace("@", "/")
        document: dict[str, Any] = json.loads(
            self.opsctl("status", "--state-dir", state, "-o", "json")
        )
        return document

    def journal(self) -> str:
        return self.host.run(["journalctl", "-u", self.name, "-o", "cat", "--no-pager"]).stdout

    def processes(self) -> list[str]:
        """Processes of the user who serves."""
        return self.host.run(["pgrep", "-u", "opsctl", "-a"], check=False).stdout.splitlines()

    def request(self, tokens: int = 8) -> Outcome:
        """One checked request from outside, to its end."""
        url = {"listen": f"127.0.0.1:{self.host.forward(PORT)}"}

        async def ask() -> Outcome:
            async with aiohttp.ClientSession() as session:
                return await stream_once(session, job(url, tokens=tokens))

        return asyncio.run(ask())


def host_with_opsctl(distribution: Distribution) -> Iterator[Host]:
    wheels = wheelhouse(PYTHON[distribution])
    with systemd_host(distribution, binds={"/srv/wheels": wheels}) as host:
        host.run(["python3", "-m", "venv", "/opt/opsctl"])
        offline = ["env", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/srv/wheels"]
        host.run([*offline, "/opt/opsctl/bin/pip", "install", "-q", "opsctl"], timeout=300)
        home = ["--home-dir", "/var/lib/opsctl"]
        host.run(["useradd", "--system", *home, "opsctl"])
        yield host


@pytest.fixture(scope="module")
def bookworm() -> Iterator[Host]:
    yield from host_with_opsctl("bookworm")


@pytest.fixture
def service(bookworm: Host, tmp_path: Path) -> Iterator[Service]:
    made = Service(bookworm, tmp_path)
    yield made
    clear(made.host)


def clear(host: Host) -> None:
    """Leave the host as it was before the test."""
    script = (
        "systemctl kill -s KILL 'opsctl*' 2>/dev/null; systemctl stop 'opsctl*';"
        "systemctl reset-failed; rm -rf /etc/systemd/system/opsctl* /etc/opsctl /var/lib/opsctl;"
        "systemctl daemon-reload; journalctl -q --rotate; journalctl -q --vacuum-time=1s"
    )
    host.run(["sh", "-c", script], check=False)


def test_a_host_finds_nothing_wrong_with_the_unit(service: Service) -> None:
    service.configure()
    service.opsctl("unit", "install", "--config", service.config, "--enable")
    checks = json.loads(service.opsctl("unit", "verify", "--config", service.config, "-o", "json"))
    wrong = [check for check in checks["checks"] if check["status"] != "ok"]
    assert wrong == []
    assert service.property("UnitFileState") == "enabled"
    assert service.opsctl("unit", "install", "--config", service.config, "--enable") == ""


def test_it_is_active_when_its_engine_answers_and_not_before(service: Service) -> None:
    service.configure(eagle3={"sim_start_time": 4, "sim_time_scale": 1})
    service.install()
    service.start()
    assert service.property("ActiveState") == "active"
    assert service.status()["state"] == "serving"
    assert service.request().ok
    active = int(service.property("ActiveEnterTimestampMonotonic"))
    begun = int(service.property("InactiveExitTimestampMonotonic"))
    assert active - begun > 4_000_000
    assert service.property("StatusText").startswith("serving: eagle3")


def test_a_load_is_shown_by_its_stages(service: Service) -> None:
    service.configure(eagle3={"sim_start_time": 8})
    service.install()
    service.host.run(["systemctl", "start", "--no-block", service.name])
    wait_until(
        lambda: "stage weights" in service.property("StatusText"),
        seconds=30,
        what="the stage in systemd's status",
    )
    assert service.property("ActiveState") == "activating"


def test_a_load_longer_than_the_time_out_is_waited_for(service: Service) -> None:
    service.configure(eagle3={"sim_start_time": 9, "sim_time_scale": 1})
    service.install("TimeoutStartSec=3s\n")
    service.start()
    assert service.property("NRestarts") == "0"
    active = int(service.property("ActiveEnterTimestampMonotonic"))
    assert active - int(service.property("InactiveExitTimestampMonotonic")) > 9_000_000


def test_an_opsctl_that_hangs_is_killed_with_its_engine_and_started_again(
    service: Service,
) -> None:
    service.configure()
    service.install("WatchdogSec=3s\n")
    service.start()
    engine, pid = service.status()["engine"]["pid"], service.property("MainPID")
    service.host.run(["kill", "-STOP", pid])
    wait_until(
        lambda: service.property("NRestarts") == "1" and service.property("ActiveState"),
        seconds=40,
        what="systemd has started it again",
    )
    wait_until(
        lambda: service.property("ActiveState") == "active", seconds=40, what="it serves again"
    )
    assert service.property("MainPID") != pid
    assert service.status()["engine"]["pid"] != engine
    assert not any(line.startswith(f"{engine} ") for line in service.processes())
    assert service.request().ok
    assert "watchdog" in service.host.run(["journalctl", "--no-pager"]).stdout.lower()


def test_a_stop_lets_a_request_finish(service: Service) -> None:
    service.configure(eagle3={"sim_time_scale": 2})
    service.install()
    service.start()
    with ThreadPoolExecutor(1) as other:
        running = other.submit(service.request, 200)
        wait_until(
            lambda: service.status()["load"]["in_flight"] == 1, seconds=20, what="it is answered"
        )
        service.systemctl("stop", timeout=120)
        outcome = running.result(10)
    assert outcome.ok, outcome
    assert service.property("Result") == "success"
    assert service.property("ActiveState") == "inactive"
    assert service.processes() == []


def test_children_that_ignore_the_end_are_gone_after_a_stop(service: Service) -> None:
    service.configure(eagle3={"sim_fault": ["ignore_sigterm"]})
    service.install()
    service.start()
    service.systemctl("stop", timeout=120)
    assert service.processes() == []
    assert service.property("Result") == "success"


def test_an_opsctl_that_is_killed_takes_its_engine_with_it_and_is_started_again(
    service: Service,
) -> None:
    service.configure(eagle3={"sim_fault": ["ignore_sigterm"]})
    service.install()
    service.start()
    engine = service.status()["engine"]["pid"]
    service.host.run(["kill", "-KILL", service.property("MainPID")])
    wait_until(
        lambda: (
            service.property("NRestarts") == "1" and service.property("ActiveState") == "active"
        ),
        seconds=60,
        what="it serves again",
    )
    assert not any(line.startswith(f"{engine} ") for line in service.processes())


def test_after_its_budget_of_crashes_it_stays_down_with_our_exit_code(service: Service) -> None:
    service.configure(
        eagle3={"sim_fault": ["start_failure=3"]},
        baseline={"sim_fault": ["start_failure=3"]},
        serve={"restart": {"backoff_first": "100ms", "backoff_max": "200ms", "budget": 3}},
    )
    service.install()
    assert service.systemctl("start", check=False, timeout=120) != 0
    assert service.property("ActiveState") == "failed"
    assert service.property("ExecMainStatus") == "69"
    assert service.property("NRestarts") == "0"
    assert service.processes() == []


def test_a_bad_configuration_is_not_tried_again(service: Service) -> None:
    service.configure()
    service.install()
    service.host.write(service.config, "profiles: [\n")
    assert service.systemctl("start", check=False) != 0
    assert service.property("ActiveState") == "failed"  # else: activating, for another try
    assert service.property("ExecMainStatus") == "78"
    assert service.property("NRestarts") == "0"


def test_the_journal_carries_what_opsctl_tells(service: Service) -> None:
    service.configure()
    service.install()
    service.start()
    told = service.journal()
    assert re.search(r"engine_stage +stage=weights", told)
    assert re.search(r"serving +profile=eagle3", told)


def test_a_reload_takes_over_what_is_right_and_refuses_what_is_wrong(service: Service) -> None:
    service.configure()
    service.install()
    service.start()
    pid = service.property("MainPID")
    assert service.systemctl("reload") == 0
    assert service.property("ActiveState") == "active"
    assert "reloaded" in service.journal()
    service.host.write(service.config, "profiles: [\n")
    assert service.systemctl("reload", check=False) != 0
    wait_until(lambda: service.property("ActiveState") == "active", seconds=10, what="it is active")
    assert service.property("MainPID") == pid
    assert service.request().ok


def test_it_runs_closed_and_its_engine_in_a_group_of_its_own(service: Service) -> None:
    service.configure()
    service.install()
    service.start()
    pid, engine = service.property("MainPID"), service.status()["engine"]["pid"]
    facts = service.host.read(f"/proc/{pid}/status").decode()
    assert "NoNewPrivs:\t1" in facts
    assert re.search(r"CapEff:\t0+\n", facts)
    assert re.search(r"Seccomp:\t2", facts)
    group = service.host.read(f"/proc/{engine}/cgroup").decode()
    assert re.search(r"/opsctl\.service/opsctl[^/\n]+$", group, re.MULTILINE), group
    # Containers of a machine without CAP_SYS_RESOURCE cannot have more than it has itself.
    assert service.property("LimitMEMLOCK") == "infinity"
    environment = service.host.read(f"/proc/{pid}/environ").decode().split("\0")
    assert "HOME=/var/lib/opsctl" in environment
    script = "touch /var/lib/opsctl/x && ! touch /usr/x && ! touch /etc/opsctl/x"
    service.host.run(["nsenter", "-t", pid, "-m", "sh", "-c", script])


def test_two_instances_serve_side_by_side_and_switch_one_after_the_other(
    service: Service, tmp_path: Path
) -> None:
    host = service.host
    left = instance(host, tmp_path, "left", 8001)
    right = instance(host, tmp_path, "right", 8002)
    left.start()
    right.start()
    assert left.status()["listen"] != right.status()["listen"]
    assert host.read("/run/lock/opsctl/switch.lock") == b""
    left.opsctl("switch", "baseline", "--no-wait", "--state-dir", "/var/lib/opsctl/left")
    right.opsctl("switch", "baseline", "--no-wait", "--state-dir", "/var/lib/opsctl/right")
    assert "waits for the switch of another instance" in right.status()["reason"]
    wait_until(
        lambda: right.status()["profile"] == "baseline" and right.status()["state"] == "serving",
        seconds=60,
        what="the second has switched",
        every=0.5,
    )
    assert left.status()["profile"] == "baseline"
    left.systemctl("stop")
    assert right.status()["state"] == "serving"


def instance(host: Host, folder: Path, name: str, port: int) -> Service:
    own = folder / name
    own.mkdir()
    made = Service(host, own, f"opsctl@{name}", f"/etc/opsctl/{name}.yaml")
    made.more = ["--instance", name, "--no-auto-spec"]  # only what the test asks for
    changes: Mapping[str, Any] = {"baseline": {"sim_start_time": 10, "sim_time_scale": 1}}
    made.configure(serve={"listen": f"127.0.0.1:{port}"}, **changes)
    made.install()
    return made


def test_an_instance_that_was_not_installed_does_not_start(
    service: Service, tmp_path: Path
) -> None:
    instance(service.host, tmp_path, "left", 8001)
    stranger = Service(service.host, tmp_path, "opsctl@stranger", "/etc/opsctl/stranger.yaml")
    stranger.configure()
    assert stranger.systemctl("start", check=False) != 0
    assert stranger.property("AssertResult") == "no"


def test_debian_13_takes_the_same_unit(tmp_path: Path) -> None:
    for host in host_with_opsctl("trixie"):
        made = Service(host, tmp_path)
        made.configure()
        made.install()
        checks = json.loads(made.opsctl("unit", "verify", "--config", made.config, "-o", "json"))
        assert [check for check in checks["checks"] if check["status"] != "ok"] == []
        made.start()
        assert made.request().ok
        assert made.systemctl("reload") == 0
        made.systemctl("stop")
        assert made.processes() == []
