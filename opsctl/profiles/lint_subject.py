"""The launch profile as the rules see it: flags by their real names, versions, sizes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from packaging.version import InvalidVersion, Version

from opsctl.config.flags import canonical
from opsctl.config.schema import Config, FlagValue, LaunchProfile
from opsctl.profiles.catalogue_model import Catalogue, Resolution
from opsctl.profiles.flags import rendered
from opsctl.profiles.lint_model import Host

EAGLE = frozenset({"EAGLE", "EAGLE3", "NEXTN"})
"""Algorithms that SGLang's EAGLE worker runs; NEXTN is another name for EAGLE."""
HIDDEN_CAP = 48
"""`max-running-requests` of a speculative engine that does not set it (`_handle_eagle_family`)."""
TRUE = frozenset({"1", "true", "yes", "y"})
_LONGEST_NUMBER = 18
Release = tuple[int, int, int]


@dataclass(frozen=True)
class Setting:
    """One flag that is on the command line: name and value as written, and what argparse reads."""

    written: str
    value: FlagValue
    resolution: Resolution

    @property
    def key(self) -> str:
        """Where it stands in the profile."""
        return f"flags.{self.written}"

    @property
    def name(self) -> str:
        """The flag's own name where it is understood, else as written."""
        flag = self.resolution.flag
        return self.written if flag is None else flag.name


@dataclass(frozen=True)
class Subject:
    """One profile to lint, with all that is known around it."""

    name: str
    profile: LaunchProfile
    catalogue: Catalogue
    host: Host
    config: Config | None = None
    others: Sequence[Catalogue] = field(default=(), repr=False)
    """Other releases, oldest first, to tell when a flag came or went."""

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The flags that reach the command line, in the order of the profile."""
        return tuple(
            Setting(canonical(name), value, self.catalogue.resolve(canonical(name)))
            for name, value in self.profile.flags.items()
            if rendered(value)
        )

    @cached_property
    def _by_name(self) -> Mapping[str, Setting]:
        return {setting.name: setting for setting in self.settings}

    def patched(self, name: str) -> bool:
        """Whether one of opsctl's patches is applied to that SGLang."""
        return name in self.host.patches.applied

    @cached_property
    def release(self) -> Release:
        """Major, minor, patch of the SGLang the profile is linted against."""
        return release_of(self.catalogue.version)

    @cached_property
    def older(self) -> tuple[Catalogue, ...]:
        """Releases before this one, oldest first."""
        return tuple(x for x in self.others if release_of(x.version) < self.release)

    @cached_property
    def newer(self) -> tuple[Catalogue, ...]:
        """Releases after this one, oldest first."""
        return tuple(x for x in self.others if release_of(x.version) > self.release)

    def since(self, patch: int) -> bool:
        """SGLang 0.5.`patch` or later."""
        return self.release >= (0, 5, patch)

    def before(self, patch: int) -> bool:
        """Older than SGLang 0.5.`patch`."""
        return not self.since(patch)

    @property
    def sm120(self) -> bool:
        """The GPU is known to be a workstation Blackwell (SM120, SM121)."""
        capability = self.host.compute_capability
        return capability is not None and capability[0] == 12

    # --- flags ---------------------------------------------------------------------------------

    def setting(self, *names: str) -> Setting | None:
        """The first of these flags that is set, by its own or its written name."""
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def has(self, name: str) -> bool:
        """Whether the flag is on the command line."""
        return name in self._by_name

    def key(self, *names: str) -> str:
        """Key of the first of these flags that is set, else of the flags as a whole."""
        setting = self.setting(*names)
        return "flags" if setting is None else setting.key

    def text(self, name: str) -> str | None:
        """The flag's single value as text; None when it is not set or not one value."""
        value = self._by_name[name].value if name in self._by_name else None
        if value is None or isinstance(value, bool | list | tuple | Mapping):
            return None
        return str(value)

    def number(self, name: str) -> int | None:
        """The flag's value as a whole number."""
        return whole(self.text(name))

    def size(self, name: str) -> int:
        """A parallel size: at least 1, and 1 when it is not set."""
        return max(self.number(name) or 1, 1)

    # --- environment ---------------------------------------------------------------------------

    @cached_property
    def variables(self) -> Mapping[str, str | None]:
        """Variables that are set, without those that a profile removes; None for a secret."""
        return {
            name: value if isinstance(value, str) else None
            for name, value in self.profile.environment.items()
            if value is not None and value != ""
        }

    def variable(self, name: str) -> str | None:
        """The variable's value, None when it is not set or a secret."""
        return self.variables.get(name)

    def enabled(self, name: str) -> bool | None:
        """A switch in the environment as SGLang reads it; None when the profile does not set it."""
        value = self.variable(name)
        return None if value is None else value.strip().lower() in TRUE

    # --- speculation ---------------------------------------------------------------------------

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm in capitals; None for a profile without speculation."""
        text = self.text("speculative-algorithm")
        return text.upper() if text else None

    @property
    def eagle(self) -> bool:
        """Speculates with SGLang's EAGLE worker."""
        return self.algorithm in EAGLE

    @property
    def steps(self) -> int | None:
        """`speculative-num-steps`."""
        return self.number("speculative-num-steps")

    @property
    def topk(self) -> int | None:
        """`speculative-eagle-topk`."""
        return self.number("speculative-eagle-topk")

    @property
    def attention_dp(self) -> bool:
        """Attention runs data-parallel."""
        return self.has("enable-dp-attention") or self.size("attn-dp-size") > 1

    @property
    def capacity(self) -> int | None:
        """Requests that the profile decodes at once, as far as its flags say."""
        explicit = self.number("max-running-requests")
        if explicit is not None:
            return explicit
        return HIDDEN_CAP if self.algorithm is not None else None

    # --- models --------------------------------------------------------------------------------

    @property
    def target(self) -> Mapping[str, Any]:
        """config.json of the language part of the target; empty when unknown."""
        return text_config(self.host.checkpoint)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures the target's config.json names."""
        return architectures(self.host.checkpoint)

    def attention_backends(self) -> Iterator[tuple[Setting, str]]:
        """Every flag that chooses an attention backend, with the backend."""
        for name in ATTENTION_FLAGS:
            text = self.text(name)
            if text is not None:
                yield self._by_name[name], text


ATTENTION_FLAGS = (
    "attention-backend",
    "prefill-attention-backend",
    "decode-attention-backend",
    "speculative-draft-attention-backend",
)


def release_of(version: str) -> Release:
    """Major, minor, patch; a build without a usable version counts as newer than all."""
    try:
        numbers = (*Version(version).release, 0, 0)[:3]
    except InvalidVersion:
        numbers = (0, 0, 0)
    return (numbers[0], numbers[1], numbers[2]) if any(numbers) else (999, 0, 0)


def whole(value: object) -> int | None:
    """A whole number as argparse's `int` would read it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, str) and len(value) > _LONGEST_NUMBER:
        return None
    try:
        return int(value)
    except ValueError:
        return None


def text_config(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model."""
    if config is None:
        return {}
    for name in ("text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping):
            return inner
    return config


def architectures(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The architectures a config.json names; anything that is not text is passed over."""
    named = (config or {}).get("architectures")
    if not isinstance(named, list | tuple):
        return ()
    return tuple(name for name in named if isinstance(name, str))
