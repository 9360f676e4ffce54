"""Prompts: shipped and own, salted from the first character, padded with text that is text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.bench.workload import SHIPPED, Prompts, Workload, load
from opsctl.errors import UsageError


def own(tmp_path: Path, *lines: object) -> Workload:
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return load(str(path))


def content(prompts: Prompts, context: int = 0, number: int = 0, concurrency: int = 1) -> str:
    return "\n".join(
        str(message["content"]) for message in prompts.messages((concurrency, context, 0), number)
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_workloads_are_complete(name: str) -> None:
    found = load(name)
    assert found.name == name
    assert len({str(item.messages) for item in found.items}) == len(found.items)
    assert len(found.items) == 1 if name == "fixed" else len(found.items) >= 15


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_prompts_do_not_label_themselves_for_the_simulated_engine(name: str) -> None:
    assert all("[class:" not in item.text for item in load(name).items)


def test_no_two_prompts_begin_alike() -> None:
    """A prefix cache matches from the first token, in blocks; the salt stands before all else."""
    for name in SHIPPED:
        prompts = Prompts(load(name), "run")
        begins = {
            str(prompts.messages((c, k, r), n)[0]["content"])[:20]
            for c in (1, 8) for k in (0, 4096) for r in (0, 1) for n in range(20)
        }  # fmt: skip
        assert len(begins) == 2 * 2 * 2 * 20


def test_another_run_never_repeats_a_prompt() -> None:
    fixed = load("fixed")
    assert content(Prompts(fixed, "one")) != content(Prompts(fixed, "two"))


def test_every_profile_of_a_run_gets_the_same_prompts() -> None:
    assert content(Prompts(load("coding"), "run")) == content(Prompts(load("coding"), "run"))


def test_a_bare_prompt_has_the_salt_alone_for_each_role_that_begins(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "Say hello."}
    both = own(tmp_path, {"messages": [user]}, {"messages": [system, user]}, {"prompt": "Bye."})
    [first, second] = Prompts(both, "run").bare()
    assert [message["role"] for message in first] == ["system", "user"]
    assert [message["role"] for message in second] == ["user"]
    assert first[0]["content"] == second[0]["content"]
    assert first[0]["content"].startswith("Reference ")
    assert not content(Prompts(both, "run"), concurrency=0).startswith(str(second[0]["content"]))


def test_without_salt_the_prompt_is_left_alone(tmp_path: Path) -> None:
    prompts = Prompts(own(tmp_path, {"prompt": "Say hello."}), None)
    assert content(prompts) == "Say hello."


@pytest.mark.parametrize("context", [1024, 65536])
def test_padding_has_the_length_that_was_asked_for(context: int) -> None:
    prompts = Prompts(load("long-document"), "run", characters_per_token=4.5)
    plain, padded = content(prompts), content(prompts, context)
    assert len(padded) - len(plain) == pytest.approx(context * 4.5, rel=0.01)


def test_padding_is_text_of_the_workload(tmp_path: Path) -> None:
    texts = ["The first passage is about rivers.", "The second one is about hills."]
    prompts = Prompts(own(tmp_path, *({"prompt": text} for text in texts)), None)
    padded = content(prompts, context=50)
    left = padded
    for text in texts:
        left = left.replace(text, "")
    assert len(left.strip()) < max(map(len, texts))  # one may be cut at the end of the padding
    assert padded.endswith(texts[0])


def test_the_task_and_its_document_stand_last() -> None:
    prompts = Prompts(load("long-document"), "run")
    item = load("long-document").items[0]
    assert content(prompts, 4096).endswith(f"{item.background}\n\n{item.messages[-1]['content']}")


def test_a_conversation_keeps_its_roles_and_is_salted_first() -> None:
    messages = Prompts(load("agentic"), "run").messages((1, 1024, 0), 0)
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[0]["content"].startswith("Reference ")
    assert len(messages[1]["content"]) > 1024 * 4


def test_repeats_begin_with_other_prompts() -> None:
    prompts = Prompts(load("coding"), None)
    firsts = {str(prompts.messages((1, 0, repeat), 0)[0]["content"]) for repeat in range(3)}
    assert len(firsts) == 3


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"prompt": 3}', "a message needs"),
        ('{"promt": "x"}', "unknown member 'promt'"),
        ('{"messages": []}', "not a list of messages"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "a message needs"),
        ('{"prompt": "x", "background": 1}', "`background` is not text"),
        ("[1]", "not a JSON object"),
        ("{", "Expecting"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(UsageError, match=r"w\.jsonl:2: ") as raised:
        load(str(path))
    assert what in raised.value.message


def test_a_name_that_is_neither_shipped_nor_a_file_names_the_choices() -> None:
    with pytest.raises(UsageError) as raised:
        load("codnig")
    assert "coding, agentic" in str(raised.value.hint)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(UsageError, match="no prompts"):
        load(str(path))
