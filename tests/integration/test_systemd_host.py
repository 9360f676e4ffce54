"""The hosts that provisioning is tested on: real, fresh, reachable as a user would, gone after."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.config.provision import HostConfig
from opsctl.system.cgroup import writable_parent
from tests.support.fake_nvml import FakeNvml
from tests.support.hosts import (
    BootError,
    Distribution,
    Host,
    Package,
    Python,
    Repository,
    gpu_files,
    show_gpus,
    standin_repository,
    systemd_host,
    tools,
    wheelhouse,
)
from tests.support.hosts.debs import DKMS_FAILS
from tests.support.hosts.teardown import leftovers, sweep

pytestmark = pytest.mark.timeout(900)
"""The first host ever has its root filesystem built."""

BOTH: tuple[Distribution, ...] = ("bookworm", "trixie")
PYTHON: dict[Distribution, Python] = {"bookworm": "3.11", "trixie": "3.13"}
STUBBORN = "trap '' TERM HUP INT; echo ready; while :; do sleep 1000; done"


@pytest.fixture(scope="module", params=BOTH)
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """A host that several tests look at, with a file, a script and a folder of this machine."""
    folder = tmp_path_factory.mktemp("seen")
    (folder / "file").write_text("of the machine")
    files = {"/etc/opsctl/given": b"given", "/usr/local/bin/answer": b"#!/bin/sh\necho 42\n"}
    with systemd_host(request.param, files=files, binds={"/srv/seen": folder}) as booted:
        yield booted


def test_a_host_is_the_debian_that_was_asked_for_with_systemd_running(
    host: Host, request: pytest.FixtureRequest
) -> None:
    wanted = request.node.callspec.params["host"]
    assert f"VERSION_CODENAME={wanted}" in host.run(["cat", "/etc/os-release"]).stdout
    assert host.run(["cat", "/proc/1/comm"]).stdout == "systemd\n"
    assert host.run(["systemctl", "is-system-running"]).stdout == "running\n"
    python = host.run(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    assert python.stdout.strip() == PYTHON[wanted]


def test_files_given_are_there_and_scripts_among_them_run(host: Host) -> None:
    assert host.read("/etc/opsctl/given") == b"given"
    assert (host.root / "etc/opsctl/given").read_bytes() == b"given"
    assert host.run(["answer"]).stdout == "42\n"
    assert host.run(["stat", "-c", "%U %a", "/etc/opsctl/given"]).stdout == "root 644\n"


def test_a_folder_of_the_machine_is_seen_and_cannot_be_written_to(host: Host) -> None:
    assert host.read("/srv/seen/file") == b"of the machine"
    refused = host.run(["touch", "/srv/seen/other"], check=False)
    assert "Read-only file system" in refused.stderr


def test_what_is_written_can_be_read_on_the_host_with_its_mode(host: Host) -> None:
    host.write("/srv/deep/file", b"\x00\xff", mode=0o600)
    assert host.read("/srv/deep/file") == b"\x00\xff"
    assert host.run(["stat", "-c", "%a", "/srv/deep/file"]).stdout == "600\n"


def test_a_command_that_fails_says_so_with_its_words(host: Host) -> None:
    assert host.run(["sh", "-c", "exit 3"], check=False).returncode == 3
    with pytest.raises(AssertionError, match=r"exit 2\n.*No such file"):
        host.run(["ls", "/nowhere"])
    with pytest.raises(AssertionError, match="No such file"):
        host.read("/nowhere")


def test_a_host_has_its_own_loopback_and_nothing_else(host: Host) -> None:
    links = host.run(["ip", "-o", "link"]).stdout.splitlines()
    assert [line.split()[1] for line in links] == ["lo:"]
    assert host.run(["ip", "route"]).stdout == ""
    # What listens on this machine's loopback is not there: the port of ssh's proxy, for one.
    asked = host.run(["curl", "-s", f"http://127.0.0.1:{host.ssh_port}"], check=False)
    assert asked.returncode == 7  # could not connect


def test_ssh_takes_the_key_and_knows_the_host(host: Host, tmp_path: Path) -> None:
    assert host.ssh("hostname; id -un").stdout == f"{host.name}\nroot\n"
    wrong = tmp_path / "known_hosts"
    wrong.write_text("")
    unknown = [f"UserKnownHostsFile={wrong}" if "Known" in x else x for x in host.ssh_command]
    refused = subprocess.run([*unknown, "true"], capture_output=True, text=True, check=False)
    assert "Host key verification failed" in refused.stderr


def test_ansible_reaches_a_host_through_its_inventory(host: Host, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps(host.inventory("first")))
    ansible = Path(sys.executable).with_name("ansible")
    ask = ["-m", "ansible.builtin.command", "-a", "cat /etc/hostname"]
    done = subprocess.run(
        [ansible, "-i", inventory, "all", *ask],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_HOME": str(tmp_path), "NO_COLOR": "1"},
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == ["first | CHANGED | rc=0 >>", host.name], done.stderr


def test_a_host_is_an_entry_of_the_configuration(host: Host) -> None:
    config = HostConfig.model_validate(host.configuration())
    assert (config.address, config.port) == ("127.0.0.1", host.ssh_port)
    assert Path(config.identity_file or "").exists()
    assert host.name not in Path(config.known_hosts or "").read_text()


def test_a_port_of_the_host_is_reached_through_a_port_of_the_machine(host: Host) -> None:
    serve = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "-d", "/etc/opsctl", "8000"]
    host.run(["systemd-run", "-q", "--unit=served", *serve])
    patient = ["curl", "-sf", "--retry", "50", "--retry-connrefused", "--retry-delay", "1"]
    host.run([*patient, "http://127.0.0.1:8000/given"])
    port = host.forward(8000)
    assert port != 8000
    assert host.forward(8000) == port
    from_here = ["curl", "-sf", "--noproxy", "*", f"http://127.0.0.1:{port}/given"]
    asked = subprocess.run(from_here, capture_output=True, text=True, check=True)
    assert asked.stdout == "given"
    host.run(["systemctl", "stop", "served"])


LISTEN = "import socket; socket.create_connection(('127.0.0.1', 22), 2)"


@pytest.mark.parametrize(
    ("directive", "script", "refusal"),
    [
        ("IPAddressDeny=any", LISTEN, "TimeoutError"),
        ("DevicePolicy=strict", "open('/dev/full').close()", "PermissionError"),
        ("ProtectSystem=strict", "open('/etc/new', 'w').close()", "Read-only file system"),
        ("RestrictAddressFamilies=AF_UNIX", LISTEN, "not supported"),
        ("User=nobody", "open('/root/.ssh/authorized_keys').close()", "PermissionError"),
    ],
)
def test_systemd_enforces_what_a_unit_is_denied(
    host: Host, directive: str, script: str, refusal: str
) -> None:
    run = ["systemd-run", "--wait", "--pipe", "-q"]
    host.run([*run, "python3", "-c", script])
    denied = host.run([*run, f"--property={directive}", "python3", "-c", script], check=False)
    assert refusal in denied.stderr


def test_the_kernels_settings_cannot_be_changed_from_a_host(host: Host) -> None:
    before = Path("/proc/sys/vm/swappiness").read_text()
    assert host.run(["sysctl", "-w", "vm.swappiness=7"], check=False).returncode != 0
    assert Path("/proc/sys/vm/swappiness").read_text() == before


def test_a_reboot_starts_what_is_enabled_and_keeps_files() -> None:
    unit = b"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    with systemd_host("bookworm", files={"/etc/systemd/system/kept.service": unit}) as host:
        host.run(["systemctl", "enable", "kept"])
        host.write("/var/lib/kept", "kept")
        boot = host.read("/proc/sys/kernel/random/boot_id")
        host.reboot()
        assert host.read("/proc/sys/kernel/random/boot_id") != boot
        assert host.run(["systemctl", "is-active", "kept"]).stdout == "active\n"
        assert host.read("/var/lib/kept") == b"kept"
        assert host.ssh("true").returncode == 0


def test_a_host_that_comes_up_with_a_failed_unit_is_refused_by_the_units_name() -> None:
    unit = b"[Service]\nExecStartPre=/bin/false\nRestart=no\n"
    broken = {"/etc/systemd/system/ssh.service.d/broken.conf": unit}
    with pytest.raises(BootError, match=r"degraded: (?s:.)*ssh\.service"):  # noqa: SIM117
        with systemd_host("bookworm", files=broken):
            pytest.fail("it counts as up")


def test_two_hosts_at_once_do_not_know_of_each_other() -> None:
    with systemd_host("bookworm") as first, systemd_host("trixie") as second:
        first.write("/etc/mark", "first")
        assert second.run(["cat", "/etc/mark"], check=False).returncode == 1
        assert first.ssh_port != second.ssh_port
        assert first.ssh("hostname").stdout != second.ssh("hostname").stdout
        assert "bookworm" in first.ssh("cat /etc/os-release").stdout
        first.leader.kill()
        first.machine.kill()
        first.leader.wait(20)
        assert second.ssh("true").returncode == 0
        assert first.ssh("true").returncode != 0
        with systemd_host("bookworm") as third:
            assert third.run(["cat", "/etc/mark"], check=False).returncode == 1


def test_nothing_of_a_host_is_left_when_the_test_fails_in_the_middle() -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    stubborn: subprocess.Popen[bytes] | None = None
    with pytest.raises(ZeroDivisionError), systemd_host("bookworm") as host:
        stubborn = subprocess.Popen(
            [*host.enter, "setsid", "sh", "-c", STUBBORN], stdout=subprocess.PIPE
        )
        assert stubborn.stdout is not None
        with stubborn.stdout:
            assert stubborn.stdout.readline() == b"ready\n"
        host.run(["mount", "-t", "tmpfs", "more", "/mnt"])
        kinds = {line.split()[0] for line in leftovers(host.name)}
        assert kinds == {"cgroup", "folder", "mount", "process"}
        raise ZeroDivisionError
    assert stubborn is not None
    stubborn.wait(20)
    assert leftovers(host.name) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_the_host_of_a_killed_test_run_is_taken_down_by_the_next() -> None:
    script = (
        "from tests.support.hosts import systemd_host\n"
        "with systemd_host('bookworm') as host:\n"
        "    print(host.name, flush=True)\n"
        "    input()\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdin is not None
    assert run.stdout is not None
    with run.stdin, run.stdout:
        name = run.stdout.readline().decode().strip()
        parent = writable_parent()
        assert name
        assert parent is not None
        try:
            sweep(parent)
            assert leftovers(name) != [], "a living run's host is left alone"
        finally:
            run.kill()
            run.wait()
    assert leftovers(name) != []
    sweep(parent)
    assert leftovers(name) == []


def test_with_network_a_host_shares_this_machines() -> None:
    with systemd_host("bookworm", network=True) as host:
        assert host.run(["ip", "-o", "link"]).stdout.count("\n") >= 1
        space = Path(f"/proc/{host.init}/ns/net")
        assert space.readlink() == Path("/proc/self/ns/net").readlink()
        assert host.ssh_port != 22
        assert host.ssh("hostname").stdout.strip() == host.name


def test_without_root_the_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="needs root"), systemd_host("bookworm"):
        pytest.fail("it is up")


def test_a_missing_program_without_apt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="systemd-nspawn"), systemd_host("bookworm"):
        pytest.fail("it is up")


# The stand-in for NVIDIA's repository


def source(repository: Repository) -> dict[str, bytes]:
    """apt's entry for a repository, as files of a host."""
    entry = (
        f"Types: deb\nURIs: {repository.url}\nSuites: /\nSigned-By: /etc/apt/keyrings/nvidia.asc\n"
    )
    return {
        "/etc/apt/sources.list.d/nvidia.sources": entry.encode(),
        "/etc/apt/keyrings/nvidia.asc": repository.key.read_bytes(),
    }


def installed(host: Host, package: str) -> str:
    return host.run(["dpkg-query", "-W", "-f", "${Version}", package]).stdout


def driver_at(version: str) -> list[str]:
    names = ("nvidia-open", "nvidia-driver", "nvidia-driver-libs", "nvidia-kernel-open-dkms")
    return [f"{name}={version}" for name in (*names, "libnvidia-ml1")]


@pytest.mark.parametrize("distribution", BOTH)
def test_drivers_of_the_repository_are_installed_held_upgraded_and_downgraded(
    distribution: Distribution, tmp_path: Path
) -> None:
    repository = standin_repository(tmp_path, distribution)
    kernels = {f"/lib/modules/{kernel}/build/Makefile": b"" for kernel in ("6.1.0-1", "6.1.0-2")}
    files = {**source(repository), **kernels, "/lib/modules/6.1.0-3/modules.dep": b""}
    with systemd_host(distribution, files=files, binds=repository.binds) as host:
        install = ["apt-get", "install", "-y", "-q"]
        host.run(["apt-get", "update"])
        host.run(
            [*install, *driver_at("580.95.05-1"), "nvidia-driver-cuda=580.95.05-1"]
            + ["libcuda1=580.95.05-1", "nvidia-persistenced=580.95.05-1", "cuda-toolkit-13-0"]
        )
        assert installed(host, "nvidia-open") == "580.95.05-1"
        assert "580.95.05" in host.run(["nvidia-smi"]).stdout
        assert "release 13.0" in host.run(["/usr/local/cuda/bin/nvcc", "--version"]).stdout
        host.run(["systemctl", "start", "nvidia-persistenced"])
        host.run(["apt-mark", "hold", "nvidia-open"])
        refused = host.run([*install, *driver_at("580.105.08-1")], check=False)
        assert "Held packages were changed" in refused.stderr
        host.run(["apt-mark", "unhold", "nvidia-open"])
        rest = [f"{name}=580.105.08-1" for name in ("nvidia-driver-cuda", "libcuda1")]
        host.run([*install, *driver_at("580.105.08-1"), *rest, "nvidia-persistenced=580.105.08-1"])
        assert installed(host, "nvidia-open") == "580.105.08-1"
        built = host.run(["dkms", "status"]).stdout.splitlines()
        assert built == [f"nvidia/580.105.08, 6.1.0-{n}, x86_64: installed" for n in (1, 2)]
        host.write(DKMS_FAILS, "6.1.0-2\n")
        rest = [line.replace("580.105.08", "580.95.05") for line in rest]
        host.run(
            [*install, "--allow-downgrades", *driver_at("580.95.05-1"), *rest]
            + ["nvidia-persistenced=580.95.05-1"]
        )
        assert installed(host, "nvidia-open") == "580.95.05-1"
        built = host.run(["dkms", "status"]).stdout.splitlines()
        assert built == ["nvidia/580.95.05, 6.1.0-1, x86_64: installed"]


@pytest.mark.parametrize("distribution", BOTH)
def test_a_tampered_index_and_a_wrong_key_make_apt_fail_until_they_are_put_right(
    distribution: Distribution, tmp_path: Path
) -> None:
    repository = standin_repository(tmp_path, distribution, driver=["580.95.05-1"], toolkit=[])
    with systemd_host(distribution, files=source(repository), binds=repository.binds) as host:
        update = ["apt-get", "update", "--error-on=any"]
        repository.tamper()
        assert "Hash Sum mismatch" in host.run(update, check=False).stderr
        repository.publish()
        host.run(update)
        host.run(["apt-get", "install", "-y", "-q", "stand-in-news"])
        repository.tamper()  # also on a host that knows the index from before
        assert "Hash Sum mismatch" in host.run(update, check=False).stderr
        repository.publish()
        repository.rotate_key()
        refused = host.run(update, check=False)
        assert refused.returncode == 100
        assert re.search("NO_PUBKEY|Missing key", refused.stderr)
        host.write("/etc/apt/keyrings/nvidia.asc", repository.key.read_bytes())
        host.run(update)
        repository.add(Package("nvidia-new", "1.0", "nvidia-driver-libs"))
        repository.withdraw("nvidia-open", "580.95.05-1")
        host.run(update)
        host.run(["apt-get", "install", "-y", "-q", "nvidia-new"])
        missing = host.run(["apt-get", "install", "-y", "nvidia-open"], check=False)
        assert "Unable to locate package nvidia-open" in missing.stderr


def test_making_a_repository_leaves_no_agent_of_gpg_behind(tmp_path: Path) -> None:
    standin_repository(tmp_path, "bookworm", driver=[], toolkit=[])
    ours = f"/tmp/gpg-{os.getpid()}-"
    assert not list(Path("/tmp").glob(f"{Path(ours).name}*"))
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(ours.encode() in command for command in commands)


# Wheels and GPUs


@pytest.mark.slow
@pytest.mark.parametrize("distribution", BOTH)
def test_a_host_without_network_installs_opsctl_and_an_engine_and_sees_gpus(
    distribution: Distribution, tmp_path: Path
) -> None:
    wheels = wheelhouse(PYTHON[distribution])
    fake = FakeNvml.eight_sm120(tmp_path)
    with systemd_host(distribution, files=gpu_files(fake), binds={"/srv/wheels": wheels}) as host:
        for environment, wanted in (("opsctl", "opsctl"), ("sglang", "sglang==0.5.23")):
            host.run(["python3", "-m", "venv", f"/opt/{environment}"])
            pip = [f"/opt/{environment}/bin/pip", "install", "-q", "--no-compile", "--no-index"]
            host.run([*pip, "--find-links", "/srv/wheels", wanted], timeout=300)
            host.run([pip[0], "check"])
        opsctl = "/opt/opsctl/bin/opsctl"
        seen = json.loads(host.run([opsctl, "gpu", "ps", "-o", "json"]).stdout)
        assert len(seen["gpus"]) == 8
        del fake.gpus[3:]
        show_gpus(host, fake)
        seen = json.loads(host.run([opsctl, "gpu", "ps", "-o", "json"]).stdout)
        assert len(seen["gpus"]) == 3
        status = [opsctl, "patch", "status", "--python", "/opt/sglang/bin/python"]
        assert "applicable" in host.run([*status, "--only", "torch-symm-mem"]).stdout


def test_a_wheelhouse_is_made_once_for_what_is_in_it() -> None:
    wheels = wheelhouse()
    assert wheelhouse() == wheels
    names = [path.name.split("-")[0] for path in wheels.iterdir()]
    assert len(names) == len(set(names))
    assert {"opsctl", "typer", "sglang", "flashinfer_python", "torch"} <= set(names)
    assert wheelhouse(sglang=("0.5.9",)) != wheels


def test_a_wheel_that_cannot_be_had_skips_with_the_words_of_pip() -> None:
    with pytest.raises(pytest.skip.Exception, match="No matching distribution"):
        wheelhouse(extra=("opsctl-no-such-package==0",))


def test_where_things_are_kept_is_chosen_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSCTL_TEST_CACHE", str(tmp_path / "cache"))
    assert tools.cache_root() == tmp_path / "cache"
    assert (tmp_path / "cache").is_dir()
