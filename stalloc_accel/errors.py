"""The one tree of exceptions. Every text reads "<what failed>: <name>=<value>, <rule>. <what to do>."."""


class StallocError(Exception):
    """Any error of ours. Out-of-memory errors of the upstream are not ours and pass unchanged."""


class ConfigError(StallocError, ValueError):
    """A key or value of the configuration that cannot be meant. The only error that stops a run, and only at its start."""


class PlanFileError(StallocError):
    """A plan file or a cache directory that must not be used. The run goes on without it."""


class FingerprintError(StallocError):
    """A key that cannot be made from what the host shows. The run goes on without the plan store."""


class BuildError(StallocError):
    """The part for the installed torch cannot be built or loaded. Training stays on the native allocator."""


def describe(what: str, name: str, value: object, rule: str, remedy: str = "") -> str:
    """The house form of an error text; `value` is cut so that a hostile one cannot flood the log."""
    try:
        shown = repr(value)
    except Exception:  # a foreign __repr__, or an integer of too many digits; the error itself must still get out
        shown = f"<{type(value).__name__}>"
    if len(shown) > 120:
        shown = shown[:117] + "..."
    text = f"{what}: {name}={shown}, {rule}."
    return f"{text} {remedy}" if remedy else text
