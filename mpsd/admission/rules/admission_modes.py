"""How hard each rule is taken: the policy's mode, and what a namespace's labels make of it.

One rule: the three labels work as those of Pod Security Admission do, each for itself; the strongest that names a rule
counts. A namespace that says nothing gets the policy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.model.fields import Fields
from mpsd.model.policy import Mode, RuleId
from mpsd.model.problem import shown

Modes = Mapping[RuleId, Mode]

# What each label covers without a value: those rules of the policy, and the stronger ones, so that a rule that is not
# enforced in a namespace is still warned of.
_COVERED: Mapping[Mode, frozenset[Mode]] = {
    Mode.ENFORCE: frozenset({Mode.ENFORCE}),
    Mode.WARN: frozenset({Mode.ENFORCE, Mode.WARN}),
    Mode.AUDIT: frozenset(Mode),
}
_VALUES: Mapping[str, Callable[[Mode, Mode], bool]] = {
    "all": lambda _label, _rule: True,
    "none": lambda _label, _rule: False,
    "default": lambda label, rule: rule in _COVERED[label],
}


@dataclass(frozen=True, slots=True)
class NamespaceModes:
    """What counts in one namespace.

    modes: without the rules that count for nothing there. remarks: labels not understood.
    """

    modes: Modes
    remarks: tuple[str, ...] = ()
    changes_pods: bool = True


def label_of(mode: Mode) -> str:
    return f"mpsd.io/{mode}"


def modes_in(labels: Fields, rules: Modes) -> NamespaceModes:
    """The modes of a namespace with these labels. Where it enforces nothing, its pods are not changed either."""
    values = {mode: labels[label_of(mode)] for mode in Mode if label_of(mode) in labels} if labels else {}
    if not values:
        return NamespaceModes(rules)
    covers = {mode: _VALUES.get(str(values.get(mode, "default")), _VALUES["default"]) for mode in Mode}
    modes = {
        rule: next(mode for mode in Mode if covers[mode](mode, own))
        for rule, own in rules.items()
        if any(covers[mode](mode, own) for mode in Mode)
    }
    return NamespaceModes(modes, tuple(_not_understood(values)), values.get(Mode.ENFORCE) != "none")


def _not_understood(values: Mapping[Mode, object]) -> Iterator[str]:
    for mode, value in values.items():
        if value not in _VALUES:
            yield f"the namespace's label {label_of(mode)} is {shown(value)}: write all, none or default"
