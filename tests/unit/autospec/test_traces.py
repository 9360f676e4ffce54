"""Traces of requests: what files may look like, and what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.autospec.traces import read
from opsctl.errors import UsageError

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,0\n"
    "2023-11-16 18:15:48.0000000,20,7\n"
)


def faults(text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(text, "t")
    assert caught.value.exit_code == 2
    return caught.value.message.splitlines()


def test_an_azure_trace_is_read_in_order_of_time() -> None:
    requests = read(AZURE, "t").requests
    assert requests.at == pytest.approx((0.0, 1.31941, 4.314579))
    assert requests.prompt == (374, 20, 396)
    assert requests.output == (44, 7, 1)  # an answer has a token at least
    assert requests.hours == pytest.approx(4.314579 / 3600)


@pytest.mark.parametrize("line", ['{"at": 3, "prompt_tokens": 5, "output_tokens": 7}'])
def test_lines_of_json_are_read(line: str) -> None:
    requests = read(f'{line}\n\n{{"at": 1.5, "prompt_tokens": 2, "max_tokens": 9}}\n', "t").requests
    assert (requests.at, requests.prompt, requests.output) == ((0.0, 1.5), (2, 5), (9, 7))


def test_sizes_that_are_not_told_are_assumed_and_said() -> None:
    trace = read('{"at": 0}\n{"at": 1, "max_tokens": 4}\n', "t")
    assert trace.requests.output == (211, 4)
    assert trace.notes == (
        "2 of 2 requests tell no prompt tokens: 1155 each",
        "1 of 2 requests tell no output tokens: 211 each",
    )


def test_times_may_be_seconds_or_carry_a_zone() -> None:
    text = "TIMESTAMP\n2024-05-10 00:00:01+02:00\n2024-05-09 22:00:00+00:00\n"
    assert read(text, "t").requests.at == (0.0, 1.0)
    assert read("\ufefftime,output_tokens\r\n5,1\r\n7.5,2\r\n", "t").requests.at == (0.0, 2.5)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ["t: empty"]),
        ("hello", ["t:1: not the header of a trace: hello"]),
        ("at,at\n1,2", ["t:1: not the header of a trace: at,at"]),
        ("TIMESTAMP\n", ["t: no requests in it"]),
        ("TIMESTAMP,ContextTokens\nx,1\n1,2,3\n\n1,-4\n1,2.5", [
            "t:2: not a time: 'x'",
            "t:3: 3 values for 2 columns",
            "t:5: prompt tokens: expected a whole number, not '-4'",
            "t:6: prompt tokens: expected a whole number, not '2.5'",
        ]),
        ('{"at": -1}\n[1]\n{"at": 1e999}\n{\n{}\n{"at": true}\n{"at": 1, "max_tokens": true}', [
            "t:1: a time is 0 seconds or more",
            "t:2: expected an object",
            "t:3: a time is 0 seconds or more",
            "t:4: not JSON",
            't:5: no time: {"at": SECONDS}',
            "t:6: not seconds: True",
            "t:7: output tokens: expected a whole number, not 'True'",
        ]),
        ("at\n0\n99999999", ["t: it lasts 1157 days"]),
        ('{"at": 0, "prompt_tokens": 1e9}', [
            "t:1: prompt tokens: expected a whole number, not '1000000000.0'",
        ]),
    ],
)  # fmt: skip
def test_each_fault_is_told_with_its_line(text: str, wanted: list[str]) -> None:
    assert faults(text) == wanted


def test_a_thousand_faults_are_not_all_told() -> None:
    told = faults("at\n" + "x\n" * 1000)
    assert (len(told), told[-1]) == (11, "... and 990 more")


@given(st.text(max_size=80) | st.text(alphabet='at,{}":1-\n.[]e', max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert len(read(text, "t").requests)
    except UsageError as error:
        assert error.message.startswith("t")
