"""From the simple commands of a pasted text to the one that launches an engine.

Nothing is run: assignments, `cd` and the activation of an environment are followed, other
commands are named in a note.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from opsctl.profiles.importer_launch import Launch, Wrapped, program, seen_from
from opsctl.profiles.importer_lexer import tokens
from opsctl.profiles.importer_options import options
from opsctl.profiles.importer_quotes import MAX_DEPTH
from opsctl.profiles.importer_shell import Shell, assignment, commands
from opsctl.profiles.importer_text import At, Command, CommandTextError, Notes, Word
from opsctl.profiles.importer_values import Reference, Value, text
from opsctl.profiles.importer_wrappers import conda_python, find, note_conda

_SILENT = {"set", "echo", "printf", "true", ":", "sleep", "shopt", "clear", "date", "wait", "which"}
_LIMITS = "in the systemd unit `LimitNOFILE=`, `LimitMEMLOCK=`, `LimitCORE=`"
_ACTIVATE = re.compile(r"(.*/)?bin/activate(\.fish|\.csh)?")


def launch(source: str, notes: Notes) -> Launch:
    """The one launch in the text; raises CommandTextError when there is none, or several."""
    found = _Script(Shell(notes)).run(source, None)
    if found is None:
        raise CommandTextError(
            At(1, 1),
            "no SGLang launch in it: no `python -m sglang.launch_server` and no `sglang serve`",
        )
    return found


@dataclass
class _Script:
    shell: Shell
    depth: int = 0
    found: Launch | None = None
    others: dict[str, None] = field(default_factory=dict)

    @property
    def notes(self) -> Notes:
        return self.shell.notes

    def run(self, source: str, origin: At | None) -> Launch | None:
        lexed = tokens(source, self.notes, origin=origin, depth=self.depth)
        for command in commands(lexed):
            self.command(command)
        if self.found is not None and self.others:
            names = ", ".join(f"`{name}`" for name in self.others)
            self.notes.add(f"commands around the launch are not taken over: {names}")
        return self.found

    def command(self, command: Command) -> None:
        """Follow one command: what it sets, where it goes, or that it is the launch."""
        words = list(command.words)
        if words[0].bare == "$":
            words = words[1:]  # a prompt that was copied too
        inline = []
        while words and (given := assignment(words[0])) is not None:
            inline.append(given)
            words = words[1:]
        # What runs in a pipe or in the background has a shell of its own, `||` runs on failure.
        apart = command.before in {"|", "|&", "||"} or command.after in {"|", "|&", "&"}
        if not words:
            for name, appends, word in () if apart else inline:
                self.shell.assign(name, appends, word)
        elif not self.builtin(words, apart=apart):
            self.external(command, inline, words)

    def builtin(self, words: Sequence[Word], *, apart: bool) -> bool:
        """Carry out what changes the shell itself; whether the command was one of these."""
        name = words[0].bare or ""
        carry_out = getattr(self, f"do_{_BUILTINS.get(name, '')}", None)
        if carry_out is None:
            return False
        if not apart:
            carry_out(words[1:])
        return True

    def do_export(self, words: Sequence[Word]) -> None:
        keeps = any((word.bare or "").startswith("-") and "n" in word.leading for word in words)
        for word in words:
            given = assignment(word)
            if given is not None:
                self.shell.assign(*given)
                name: str | None = given[0]
            else:
                name = self.shell.single(word).literal
            if name is None or name.startswith("-"):
                continue
            if keeps:
                self.shell.exported.pop(name, None)
            else:
                self.shell.exported[name] = None

    def do_declare(self, words: Sequence[Word]) -> None:
        exports = any(re.match(r"-\w*x", word.bare or "") for word in words)
        given = [found for word in words if (found := assignment(word)) is not None]
        for name, appends, word in given:
            self.shell.assign(name, appends, word)
            if exports:
                self.shell.exported[name] = None

    def do_unset(self, words: Sequence[Word]) -> None:
        for value in self.shell.fields(words):
            if not value.leading.startswith("-"):
                self.shell.unset(value.known().plain())

    def do_set(self, words: Sequence[Word]) -> None:
        texts = [word.bare or "" for word in words]
        for flag, following in zip(texts, [*texts[1:], ""], strict=True):
            if re.fullmatch(r"[-+]\w*a\w*", flag) or following == "allexport":
                self.shell.export_all = flag.startswith("-")

    def do_colon(self, words: Sequence[Word]) -> None:
        self.shell.fields(words)

    def do_cd(self, words: Sequence[Word]) -> None:
        _, rest = options(self.shell.fields(words), ())
        target = rest[0] if rest else Value((Reference("HOME", None),), At(1, 1))
        if target.literal == "-":
            raise CommandTextError(target.at, "`cd -` is not followed", hint="name the directory")
        self.shell.directory = seen_from(self.shell.directory, target.known())

    def do_source(self, words: Sequence[Word]) -> None:
        values = self.shell.fields(words)
        if not values:
            return
        name = values[0].plain()
        if name == "activate" and len(values) > 1:  # conda of old
            self.activate_conda(values[1:])
        elif _ACTIVATE.fullmatch(name) is None:
            self.notes.add(f"`{name}` is not read: write what it sets into `environment`")
        else:
            self.activate(values[0])

    def activate(self, script: Value) -> None:
        """`source DIR/bin/activate`: the interpreter is DIR/bin/python."""
        resolved = seen_from(self.shell.directory, script)
        last = resolved.pieces[-1]
        if not isinstance(last, str) or "activate" not in last:
            raise CommandTextError(script.at, "this activation is not understood")
        kept = last[: last.rindex("activate")] + "python"
        self.shell.python = Value((*resolved.pieces[:-1], kept), script.at)
        first = Value((*resolved.pieces[:-1], kept.removesuffix("/python") + ":"), script.at)
        self.shell.set("PATH", first.plus(self.shell.value("PATH", script.at)))
        self.shell.exported["PATH"] = None
        if self.shell.directory is None and not resolved.plain().startswith(("/", "$")):
            self.notes.add("`python` is a relative path; write an absolute one")

    def activate_conda(self, values: Sequence[Value]) -> None:
        wrapped = self.wrapped((), {})
        found, rest = options(values, ("-n", "--name", "-p", "--prefix"))
        self.shell.python = conda_python(wrapped, found)
        if not rest:
            return
        if "/" in rest[0].plain():
            self.shell.python = rest[0].plus(text("/bin/python", rest[0].at))
        else:
            note_conda(wrapped, rest[0])

    def do_deactivate(self, _: Sequence[Word]) -> None:
        self.shell.python = None

    def do_ulimit(self, words: Sequence[Word]) -> None:
        shown = " ".join(value.plain() for value in self.shell.fields(words))
        self.notes.add(f"`ulimit {shown}` cannot be said in a profile; instead: {_LIMITS}")

    def do_silent(self, words: Sequence[Word]) -> None:
        """Commands that change nothing an engine sees."""

    def external(
        self, command: Command, inline: Sequence[tuple[str, bool, Word]], words: Sequence[Word]
    ) -> None:
        """A program: the launch, or one that is only named in a note."""
        values = self.shell.fields(words)
        if program(values) in {"conda", "mamba", "micromamba"} and _second(values) == "activate":
            self.activate_conda(values[2:])
            return
        environment = self.shell.environment()
        for name, appends, word in inline:
            value = self.shell.single(word)
            old = environment.get(name)
            environment[name] = old.plus(value) if appends and old is not None else value
        notes = Notes()
        found = find(self.wrapped(values, environment, notes))
        if found is None:
            self.others.setdefault(program(values) or "a command")
            return
        if self.found is not None:
            raise CommandTextError(
                command.at,
                f"a second launch; the first is at {self.found.at}",
                hint="import one at a time",
            )
        self.found = found
        for note in notes.seen:
            self.notes.add(note)
        self.note_surroundings(command)

    def note_surroundings(self, command: Command) -> None:
        if command.redirections or command.after in {"|", "|&"}:
            self.notes.add(
                "where output goes is left out: opsctl keeps the engine's (`opsctl logs`)"
            )
        if command.after == "&":
            self.notes.add(
                "`&` is left out: `opsctl serve` or its systemd unit keeps the engine running"
            )

    def wrapped(
        self,
        values: tuple[Value, ...],
        environment: dict[str, Value | None],
        notes: Notes | None = None,
    ) -> Wrapped:
        shell = replace(self.shell, notes=notes if notes is not None else self.notes)
        return Wrapped(values, environment, shell, self.nested)

    def nested(self, source: Value, wrapped: Wrapped) -> Launch | None:
        """The launch in a quoted command, which sees what is exported to it."""
        plain = source.known().plain()
        if self.depth >= MAX_DEPTH or (source.literal is None and "'" in plain):
            raise CommandTextError(
                source.at,
                "this quoted command is not understood",
                hint="write the values of its variables, or the command without quotes around it",
            )
        given = {n: v for n, v in wrapped.environment.items() if v is not None}
        removed = {n: None for n, v in wrapped.environment.items() if v is None}
        shell = replace(
            wrapped.shell,
            variables=dict.fromkeys(wrapped.shell.variables, Value((), source.at)) | given,
            arrays={},
            exported=dict.fromkeys(given),
            removed=removed,
            export_all=False,
        )
        found = _Script(shell, self.depth + 1).run(plain, source.at)
        return None if found is None else replace(found, mounts=(*found.mounts, *wrapped.mounts))


def _second(values: Sequence[Value]) -> str | None:
    return values[1].literal if len(values) > 1 else None


_BUILTINS = {
    "export": "export",
    "declare": "declare",
    "typeset": "declare",
    "readonly": "declare",
    "local": "declare",
    "unset": "unset",
    "set": "set",
    ":": "colon",
    "cd": "cd",
    "pushd": "cd",
    "source": "source",
    ".": "source",
    "deactivate": "deactivate",
    "ulimit": "ulimit",
    **dict.fromkeys(_SILENT - {"set", ":"}, "silent"),
}
