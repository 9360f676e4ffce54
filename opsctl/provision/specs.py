"""For maintainers: the roles' argument specifications and defaults, made from the models.

    python -m opsctl.provision.specs [--check]

Ansible refuses a variable of the wrong type before a role's first task; so the models that check
opsctl.yaml are also what a role may be given, whoever calls it.
"""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from opsctl.config.provision import ProvisionConfig
from opsctl.provision.inventory import ROLES
from opsctl.system import resources

Spec = dict[str, Any]
COMMON: Mapping[str, Spec] = {
    "opsctl_state": {
        "type": "str",
        "choices": ["present", "absent"],
        "default": "present",
        "description": "absent takes away what the role installed.",
    },
    "opsctl_pending_path": {
        "type": "path",
        "default": "/var/lib/opsctl-provision/pending.d",
        "description": "Folder for notes of what is left to a person.",
    },
}
COMPUTED: Mapping[str, Mapping[str, Spec]] = {
    "nvidia_repo": {
        "nvidia_repo_key_content": {"type": "str", "description": "Signing key, base64."},
        "nvidia_repo_key_suffix": {
            "type": "str",
            "choices": ["asc", "gpg"],
            "description": "asc for an armored key.",
        },
    },
    "engine_env": {
        "engine_env_constraints_content": {"type": "str", "description": "Constraints, as text."},
        "engine_env_flashinfer": {"type": "str", "description": "FlashInfer that SGLang pins."},
        "engine_env_user": {"type": "str", "description": "Owner of the caches."},
    },
    "sm120_patches": {
        "sm120_patches_required": {
            "type": "list",
            "elements": "str",
            "description": "Patches that profiles require, and the configured ones.",
        },
        "sm120_patches_python": {"type": "path", "description": "The engine's interpreter."},
        "sm120_patches_opsctl": {"type": "path", "description": "opsctl on the host."},
    },
    "model_store": {
        "model_store_paths": {
            "type": "list",
            "elements": "dict",
            "description": "Checkpoints: path, source, revision.",
        },
        "model_store_python": {"type": "path", "description": "The engine's interpreter."},
    },
    "opsctl_service": {
        "opsctl_service_instances": {
            "type": "list",
            "elements": "dict",
            "description": "Instances: name (empty for the only one), config_content.",
        },
        "opsctl_service_package_content_path": {
            "type": "str",
            "description": "Wheel of opsctl on the controlling machine; empty for none.",
        },
        "opsctl_service_engine_python": {
            "type": "path",
            "description": "The engine's interpreter.",
        },
    },
    "verify": {
        "verify_opsctl": {"type": "path", "description": "opsctl on the host."},
        "verify_listen": {
            "type": "list",
            "elements": "str",
            "description": "HOST:PORT of each gateway.",
        },
        "verify_instances": {
            "type": "list",
            "elements": "str",
            "description": "Names of the instances.",
        },
    },
}
"""Variables that opsctl works out (inventory.computed), by role."""
HEAD = "---\n# Made from opsctl's configuration models by `python -m opsctl.provision.specs`.\n"
_TYPES = {str: "str", int: "int", bool: "bool", float: "float"}


def argument_specs(role: str) -> Spec:
    """Return the content of a role's meta/argument_specs.yml."""
    model = _model(role)
    options = {f"{role}_{name}": _option(info) for name, info in model.model_fields.items()}
    return {
        "argument_specs": {
            "main": {
                "short_description": (model.__doc__ or "").splitlines()[0],
                "options": {**options, **COMPUTED.get(role, {}), **COMMON},
            }
        }
    }


def defaults(role: str) -> Spec:
    """Return the content of a role's defaults/main.yml: what it takes when it is used alone."""
    model = _model(role)
    found = {
        f"{role}_{name}": _plain(info.get_default(call_default_factory=True))
        for name, info in model.model_fields.items()
    }
    empty: dict[str, Any] = {"list": [], "dict": {}, "str": "", "path": ""}
    for name, spec in COMPUTED.get(role, {}).items():
        found[name] = spec["choices"][0] if "choices" in spec else empty[spec["type"]]
    return found


def files(role: str) -> dict[str, str]:
    """Return the made files of a role by path inside it."""
    return {
        "meta/argument_specs.yml": HEAD + _yaml(argument_specs(role)),
        "defaults/main.yml": HEAD + _yaml(defaults(role)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with --check tell which differ; returns 1 then."""
    parser = argparse.ArgumentParser(prog="specs", description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    root = Path(str(resources.tree("playbooks"))) / "roles"
    wrong = []
    for role in ROLES:
        for name, text in files(role).items():
            path = root / role / name
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                continue
            wrong.append(f"{role}/{name}")
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if options.check and wrong:
        sys.stderr.write(f"not as the models have it: {', '.join(wrong)}\n")
        return 1
    return 0


def _model(role: str) -> Any:
    return ProvisionConfig.model_fields[role].annotation


def _option(info: FieldInfo) -> Spec:
    annotation, optional = _bare(info.annotation)
    spec: Spec = {"description": info.description or "", **_type(annotation)}
    default = _plain(info.get_default(call_default_factory=True))
    if default is not None:
        spec["default"] = default
    elif optional:
        spec["required"] = False
    return spec


def _type(annotation: Any) -> Spec:
    origin = get_origin(annotation)
    if origin is Literal:
        return {"type": "str", "choices": list(get_args(annotation))}
    if origin is tuple:
        return {"type": "list", "elements": "str"}
    if origin is Mapping:
        return {"type": "dict"}
    return {"type": _TYPES[annotation]}


def _bare(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [item for item in get_args(annotation) if item is not type(None)]
        return (*_bare(inner[0])[:1], True)
    return annotation, False


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _yaml(content: Spec) -> str:
    text: str = yaml.dump(
        content, Dumper=_Indented, sort_keys=False, default_flow_style=False, width=100
    )
    return text


class _Indented(yaml.SafeDumper):
    """Lists below their key, as ansible-lint wants them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Never without indentation."""
        return super().increase_indent(flow, False)


if __name__ == "__main__":
    sys.exit(main())
