"""What a pasted command becomes, what is noted about it, and what is refused where."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.config.load import load_text
from opsctl.profiles.importer import CommandTextError, Imported, parse
from opsctl.profiles.importer_yaml import render

RUN = "/p/python -m sglang.launch_server --model-path /m"
SECRETS = ("hf_ABCDEFGHIJKLMNOPQRST", "sk-ABCDEFGHIJKLMNOPQRST", "hunter2")


def written(text: str) -> dict[str, Any]:
    return dict(parse(text).written)


def environment(text: str) -> dict[str, Any]:
    return dict(written(text).get("environment", {}))


def flags(text: str) -> dict[str, Any]:
    return dict(written(text).get("flags", {}))


def noted(text: str) -> str:
    return "\n".join(parse(text).notes)


def shown(imported: Imported) -> str:
    return render(imported) + repr(imported)


# --- what is taken over ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        ("--tp 8", {"tp": 8}),
        ("--mem-fraction-static=0.85", {"mem-fraction-static": 0.85}),
        ("--trust-remote-code", {"trust-remote-code": True}),
        ("--x 0.90 --y 08 --z 1e-5 --w 1_0", {"x": "0.90", "y": "08", "z": "1e-5", "w": "1_0"}),
        ("--x true --y null --z ''", {"x": "true", "y": "null", "z": ""}),
        ("--x -1 --y -0.5", {"x": -1, "y": -0.5}),
        ("--cuda-graph-bs 1 2 4", {"cuda-graph-bs": [1, 2, 4]}),
        ("""--j '{"a": [1, true]}'""", {"j": {"a": [1, True]}}),
        ("""--j '{"a":1}'""", {"j": '{"a":1}'}),
        ("""--j '{"a": 1, "a": 2}'""", {"j": '{"a": 1, "a": 2}'}),
        ("""--j '{"a": "$X ${Y}"}'""", {"j": {"a": "$$X $${Y}"}}),
        ("--tp_size 8", {"tp-size": 8}),
        ("--tp 4 --tp-size 2 --tp 8", {"tp-size": 2, "tp": 8}),
    ],
)
def test_flags(pasted: str, expected: dict[str, Any]) -> None:
    found = flags(f"{RUN} {pasted}")
    assert found == expected
    assert list(found) == list(expected)  # aliases of one flag count in their order
    assert [type(value) for value in found.values()] == [type(v) for v in expected.values()]


def test_what_opsctl_owns_goes_to_its_keys_or_is_left_out() -> None:
    text = (
        "/p/python -m sglang.launch_server --model /a --served-model-name n --host 0.0.0.0 "
        "--port=30000 --speculative-draft-model-path /d --enable-metrics --gated-launch-port 1"
    )
    assert written(text) == {
        "python": "/p/python", "model": "/a", "draft_model": "/d", "served_name": "n",
    }  # fmt: skip
    assert parse(text).name == "n"
    for flag in ("host", "port", "enable-metrics", "gated-launch-port"):
        assert f"`--{flag}` is left out" in noted(text)


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (f"export A=1 B='x y'\n{RUN}", {"A": "1", "B": "x y"}),
        (f"A=1 env -u C B=2 {RUN}", {"A": "1", "C": None, "B": "2"}),
        (f"A=1; B=2; export B\n{RUN}", {"B": "2"}),
        (f"export A=1; unset A\n{RUN}", {"A": None}),
        (f"A= {RUN}", {"A": None}),
        (f"D=/x; A=$D/y:${{Z:-w}} {RUN}", {"A": "/x/y:${Z:-w}"}),
        (f"A=$Z {RUN}", {"A": "${Z}"}),
        (f"A=$HOME/x {RUN}", {"A": "${HOME}/x"}),
        (f"A='$Z $$' {RUN}", {"A": "$$Z $$$$"}),
        (f"export LD_LIBRARY_PATH=/l:$LD_LIBRARY_PATH\n{RUN}",
         {"LD_LIBRARY_PATH": "/l:${LD_LIBRARY_PATH:-}"}),
        (f"export PATH=/p:$PATH\n{RUN}", {}),
        (f"export A=1 | cat; export B=2 &\n{RUN}", {}),
        (f"false || export A=1\n{RUN}", {}),
    ],
)  # fmt: skip
def test_environment(pasted: str, expected: dict[str, Any]) -> None:
    assert environment(pasted) == expected


@pytest.mark.parametrize(
    ("pasted", "python"),
    [
        (f"{RUN}", "/p/python"),
        (f"cd /w && .{RUN}", "/w/p/python"),
        ("source /v/bin/activate; python3 -m sglang.launch_server --model-path m", "/v/bin/python"),
        ("cd /w; . .venv/bin/activate; sglang serve m", "/w/.venv/bin/python"),
        ("/v/bin/sglang serve m", "/v/bin/python"),
        ("~/v/bin/python -m sglang.launch_server --model m", "~/v/bin/python"),
        ("$HOME/v/bin/python -m sglang.launch_server --model m", "~/v/bin/python"),
        ("conda run -p /c python -m sglang.launch_server --model m", "/c/bin/python"),
        ("conda activate /c; python -m sglang.launch_server --model m", "/c/bin/python"),
        ("cd /w; uv run python -m sglang.launch_server --model m", "/w/.venv/bin/python"),
        ("uv run --project /q -m sglang.launch_server --model m", "/q/.venv/bin/python"),
        ("python3 -m sglang.launch_server --model m", "python3"),
        ("tmux new -d -s s '/p/python -m sglang.launch_server --model m'", "/p/python"),
        (
            "sudo -E nohup nice -n 5 time /p/python -um sglang.launch_server --model m &",
            "/p/python",
        ),
    ],
)
def test_interpreter(pasted: str, python: str) -> None:
    assert written(pasted)["python"] == python
    absolute = python.startswith(("/", "~"))
    assert ("looked up in PATH" in noted(pasted)) is not absolute


def test_paths_are_resolved_from_the_directory_of_cd() -> None:
    text = "cd /w && cd x && /p/python -m sglang.launch_server --model ./m --chat-template t.jinja"
    assert written(text)["model"] == "/w/x/m"
    assert flags(text) == {"chat-template": "/w/x/t.jinja"}
    assert "`./m` is `/w/x/m`" in noted(text)
    named = "cd /w && sglang serve org/name"
    assert written(named)["model"] == "org/name"
    assert "if it is a path: /w/org/name" in noted(named)


def test_docker_run_becomes_the_command_on_the_host() -> None:
    text = """
export HF_TOKEN=hf_ABCDEFGHIJKLMNOPQRST OUTSIDE=1 PASSED=2
sudo docker run -itd --rm --gpus '"device=0,1"' --shm-size 32g --ipc=host -p30000:30000 \\
  -v /data/models:/models -v $HOME/cache:/cache --ulimit memlock=-1 -w /models \\
  -e HF_TOKEN -e PASSED -eA=b --env HF_HOME=/cache/hf --env-file vars --name x \\
  lmsysorg/sglang:v0.5.23 python3 -m sglang.launch_server --model-path ./kimi --tp 2
"""
    found = written(text)
    assert found["model"] == "/data/models/kimi"
    assert found["environment"] == {
        "CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": {"env": "HF_TOKEN"}, "PASSED": "2", "A": "b",
        "HF_HOME": "${HOME}/cache/hf",
    }  # fmt: skip
    notes = noted(text)
    for words in ("lmsysorg/sglang:v0.5.23", "--shm-size 32g", "--ipc", "--ulimit", "vars",
                  "OUTSIDE", "`/models` in the container is `/data/models`"):  # fmt: skip
        assert words in notes
    entry = "docker run --entrypoint /x/python img -m sglang.launch_server --model m"
    assert written(entry)["python"] == "/x/python"
    inner = "docker run img bash -c 'A=1 python3 -m sglang.launch_server --model m --x \"$A\"'"
    assert environment(inner) == {"A": "1"}


@pytest.mark.parametrize(
    "pasted",
    [
        f"{RUN} \\\n  # --a 1 \\\n  --tp 8",
        f"{RUN} \\   # why\n  --tp 8",
        f"{RUN} \\ \t\n  --tp 8",
        f"{RUN}  # why\n\n  # --a 1\n  --tp 8",
        f"{RUN}\n  --tp 8",
        f"{RUN}\\ # why\n --tp 8",
    ],
)
def test_slips_are_read_as_meant_with_a_note(pasted: str) -> None:
    assert flags(pasted) == {"tp": 8}
    assert "line " in noted(pasted)
    assert flags(pasted.replace("\n", "\r\n")) == {"tp": 8}


def test_a_comment_ends_a_command_where_nothing_says_otherwise() -> None:
    assert flags(f"{RUN} --tp 8 # the end \\\necho 1 2") == {"tp": 8}


@pytest.mark.parametrize(
    ("pasted", "word"),
    [
        (f"numactl -N 0 -m 0 {RUN}", "NUMAPolicy="),
        (f"taskset -c 0-7 {RUN}", "CPUAffinity="),
        (f"ulimit -n 65535; {RUN}", "LimitNOFILE="),
        (f"pkill -9 python; sleep 5; {RUN}", "`pkill`"),
        (f"{RUN} > log_$(date +%F) 2>&1", "opsctl logs"),
        (f"{RUN} | tee `date`.log", "opsctl logs"),
        (f"nohup {RUN} &", "`&` is left out"),
        (f"source env.sh; {RUN}", "`env.sh` is not read"),
        (f"{RUN} --x 1 --x 2", "more than once"),
        ("conda activate sg; python -m sglang.launch_server --model m", "conda run -n sg"),
        (f"export PATH=/cuda/bin:$PATH; {RUN}", "set without /p"),
    ],
)
def test_what_cannot_be_said_is_noted(pasted: str, word: str) -> None:
    assert word in noted(pasted)


def test_commands_in_the_shape_they_are_published_in() -> None:
    flat = """
#!/bin/bash
export HF_TOKEN="" model=org/name tp=2
sudo docker run --gpus all --shm-size 32g -p 30000:30000 \\
    --mount type=bind,source=/srv,target=/mnt -v $(pwd):/workspace --entrypoint "" \\
    --env HF_TOKEN=$HF_TOKEN --env PYTHONPATH=/mnt/python --ipc=host \\
    lmsysorg/sglang:latest \\
    python3 -m sglang.launch_server --model-path ${model} --host 0.0.0.0 --tp ${tp} \\
      --chat-template /mnt/t.jinja --attention-backend flashinfer --attention-backend triton

    # --dp 1
"""
    found = written(flat)
    assert (found["model"], environment(flat)) == (
        "org/name", {"HF_TOKEN": None, "PYTHONPATH": "/srv/python"}
    )  # fmt: skip
    assert flags(flat) == {
        "tp": 2, "chat-template": "/srv/t.jinja", "attention-backend": "triton",
    }  # fmt: skip
    nested = """
MODEL=/m; GPU=3
CUDA_VISIBLE_DEVICES=$GPU conda run -n sg --no-capture-output bash -c "export A=1
    python -m sglang.launch_server --model-path '$MODEL' --port 30001" > "$LOG/s.log" 2>&1 &
PIDS+=($!)
"""
    assert environment(nested) == {"CUDA_VISIBLE_DEVICES": "3", "A": "1"}
    assert written(nested)["model"] == "/m"


def test_what_is_set_in_a_pipe_or_in_the_background_is_not_known() -> None:
    assert flags(f'A=1 | cat; B=2 &\n{RUN} --x "$A$B"') == {"x": "${A}${B}"}


def test_the_working_directory_is_known_after_cd() -> None:
    text = "cd /w; docker run -v $(pwd)/m:/m -v $PWD/d:/d img {} --model /m/x --chat-template /d/t"
    found = written(text.format(RUN.partition(" --model")[0]))
    assert (found["model"], found["flags"]) == ("/w/m/x", {"chat-template": "/w/d/t"})
    with pytest.raises(CommandTextError, match=r"command:1:15: a command substitution"):
        parse("docker run -v $(pwd):/m img " + RUN)
    assert "`--x` takes $Y from opsctl's own environment; it must" in noted(f"{RUN} --x $Y")


def test_notes_stand_on_top_of_yaml_that_loads() -> None:
    imported = parse(f"A=$'x\\ny' nohup {RUN} --tp $TP --y \"${{Z}}\" --s 'on' &", name="n")
    text = render(imported)
    assert text.startswith("# ")
    loaded = load_text(text, name="n", environment={"TP": "8", "Z": "zz"})
    profile = loaded.config.profiles["n"]
    assert profile.flags == {"tp": 8, "y": "zz", "s": "on"}
    assert profile.environment == {"A": "x\ny"}


# --- secrets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        (f"export HF_TOKEN={SECRETS[0]}; {RUN}", {"HF_TOKEN": {"env": "HF_TOKEN"}}),
        (f"HF_TOKEN=$MY_TOKEN {RUN}", {"HF_TOKEN": {"env": "MY_TOKEN"}}),
        (f"HF_TOKEN=$(cat ~/.token) {RUN}", {"HF_TOKEN": {"file": "~/.token"}}),
        (f'HF_TOKEN="$(head -n 1 -- /etc/t)" {RUN}', {"HF_TOKEN": {"file": "/etc/t"}}),
        (f'T_KEY="$(head -n 1 -- "$CREDENTIALS_DIRECTORY"/t)" {RUN}',
         {"T_KEY": {"credential": "t"}}),
        (f"MY_TOKEN={SECRETS[2]}; export A=x-$MY_TOKEN; {RUN}", {"A": {"env": "A"}}),
        (f"A={SECRETS[1]} {RUN}", {"A": {"env": "A"}}),
        (f"P=http://u:{SECRETS[2]}@proxy {RUN}", {"P": {"env": "P"}}),
        (f"{RUN} --api-key {SECRETS[1]} --admin-api-key={SECRETS[2]}", {}),
        (f"{RUN} --ssl-keyfile-password {SECRETS[2]}", {}),
    ],
)  # fmt: skip
def test_a_secret_is_referred_to_and_never_repeated(pasted: str, expected: dict[str, Any]) -> None:
    assert environment(pasted) == expected
    assert not any(secret in shown(parse(pasted)) for secret in SECRETS)


@pytest.mark.parametrize(
    "pasted",
    [
        f"K_TOKEN={SECRETS[2]}; {RUN} --x $K_TOKEN",
        f"{RUN} --x {SECRETS[0]}",
        f"{RUN} --x http://u:{SECRETS[2]}@h",
        f"{RUN} --some-token {SECRETS[2]}",
        f"{RUN} --api-key {SECRETS[1]} {SECRETS[2]}",
        f"A={SECRETS[2]}$(x) {RUN}",
        f"{RUN} {SECRETS[2]} stray",
    ],
)
def test_no_message_repeats_a_value(pasted: str) -> None:
    with pytest.raises(CommandTextError) as refused:
        parse(pasted)
    told = f"{refused.value.message} {refused.value.hint}"
    assert not any(secret in told for secret in SECRETS)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pasted", "at", "word"),
    [
        ("ls", "1:1", "no SGLang launch"),
        (f"{RUN} --x $(id)", "1:55", "command substitution"),
        (f"{RUN} \\\n  --x `id`", "2:7", "command substitution"),
        (f"A=$(id)\nexport B=$A\n{RUN}", "1:3", "command substitution"),
        (f"{RUN} --x $1", "1:55", "running script"),
        (f"{RUN} --x ${{A%.*}}", "1:55", "expansion"),
        (f"{RUN} 'x", "1:51", "never closed"),
        (f'{RUN} "x', "1:51", "never closed"),
        (f"{RUN} --x ${{A", "1:55", "never closed"),
        (f"if true; then {RUN}; fi", "1:1", "conditions"),
        (f"for a in b; do {RUN}; done", "1:1", "loops"),
        (f"({RUN})", "1:1", "groups"),
        (f"{RUN}\n{RUN}", "2:1", "second launch"),
        (f"torchrun {RUN}", "1:1", "`torchrun`"),
        (f"python -m torch.distributed.run {RUN}", "1:1", "`torch.distributed.run`"),
        ("docker compose up", "1:1", "`docker compose`"),
        ("vllm serve m", "1:1", "`vllm`"),
        (f"perf stat {RUN}", "1:1", "`perf` in front"),
        ("python -m sglang.launch_server --tp 8", "1:1", "no model"),
        (f"{RUN} --config f.yaml", "1:51", "another file"),
        (f"{RUN} --help", "1:51", "help"),
        (f"{RUN} -tp 8", "1:51", "no flag"),
        (f"{RUN} --x=1 2", "1:57", "no flag"),
        (f"{RUN} $EXTRA_ARGS", "1:51", "variable"),
        (f"{RUN} --y $EXTRA_ARGS", "1:55", "variable"),
        (f'{RUN} --j {{"a":1,"b":2}}', "1:55", "braces"),
        (f"{RUN} \u2013-tp 8", "1:51", "U+2013"),
        (f"{RUN} --x \u201cy\u201d", "1:55", "U+201C"),
        (f"{RUN}\u00a0--tp 8", "1:50", "U+00A0"),
        (f"{RUN} << EOF", "1:51", "here-document"),
        (f"{RUN} \x07", "1:51", "U+0007"),
        ("docker run img --model-path m", "1:16", "entrypoint"),
        (f"env 1A=2 {RUN}", "1:5", "not a name"),
        ("bash -c 'python -m sglang.launch_server --model m --x $(id)'", "1:9", "substitution"),
    ],
)
def test_refused_at(pasted: str, at: str, word: str) -> None:
    with pytest.raises(CommandTextError) as refused:
        parse(pasted)
    assert refused.value.message.startswith(f"command:{at}: ")
    assert word in refused.value.message
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "hostile",
    [
        "A=a; " + "A=$A$A; " * 60 + RUN,
        "A=(a); " + 'A=("${A[@]}" "${A[@]}"); ' * 60 + RUN,
        f"{RUN} --x " + "${A:-" * 3000 + "}" * 3000,
        f"{RUN} --x " + "$(" * 3000 + ")" * 3000,
        "x" * 100_000,
        "bash -c " * 3000 + RUN,
        "env " * 10_000 + RUN,
        f"{RUN} --j '" + '{"a": ' * 5000 + "1" + "}" * 5000 + "'",
        "\n" * 60_000 + RUN,
        f"{RUN} " + "\\\n" * 30_000,
        "A=1 " * 15_000 + RUN,
    ],
)
@pytest.mark.timeout(20)
def test_hostile_text_ends_soon(hostile: str) -> None:
    try:
        load_text(render(parse(hostile)), name="h", environment={})
    except CommandTextError as error:
        assert len(error.message) < 300
