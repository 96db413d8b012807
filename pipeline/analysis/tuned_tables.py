"""A tuned graph in words and as a table: its outcome enters, sentences and a `Table` leave. Pure."""

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.tuned import Measured, Tuned, TunedSetting

KNOWN = (
    "Predicted speeds take each call to last as long as in the recorded run. `same path`: the share of chains that take the recorded path "
    "to its end, so that their answers are known; the predicted accuracy is between all others wrong and all others right. `as tried`: the "
    "accuracy of the recorded run if its thoughts ended as early, with the answers that were asked for there. `changed`: decisions of a "
    "chain that differ from the recorded ones. `unverified`: the share of drafted steps that a gate lets pass. Both are estimated where a "
    "chain has left the recorded path."
)
HEADER = ("setting", "", "speed", "accuracy", "loss", "same path", "changed", "unverified")


def choice_of(found: Tuned) -> list[str]:
    """What was chosen, and how sure that is; or why nothing was."""
    runs = len(found.measured)
    over = f"the target alone {_percent(found.target.accuracy)} of {found.problems} problems"
    choice = found.choice
    if (found.target.accuracy or 0.0) <= found.max_loss:
        right = f"the target alone is right in {_percent(found.target.accuracy)} of {found.problems} problems"
        return [f"No setting: {right}, so that none could lose {_percent(found.max_loss)}."]
    if choice is None or choice.measured is None:
        said = f"No setting: none of the {runs} that were run has a loss whose interval lies below {_percent(found.max_loss)} ({over})."
        more = f" About {found.would_do:,} problems would do if losses and spread stayed as they are." if found.would_do else ""
        return [said + more]
    loss, speed = choice.measured.loss, choice.measured.over_target
    sentences = [
        f"Chosen: {choice.label}: {_percent(choice.measured.accuracy)} right ({over}), loss {_percent(loss.value)}, interval "
        f"{_percent(loss.low)} to {_percent(loss.high)}, wanted below {_percent(found.max_loss)}; {_times(speed)} "
        "the speed of the target alone.",
        f"The intervals of {found.tests} runs hold together in 95 % of cases, {runs} settings were run. What the chosen one does on new "
        "problems a test set tells, once.",
    ]
    if speed is not None and speed < 1:
        sentences.append("The target alone is faster than every setting that loses so little.")
    return sentences


def table_of(found: Tuned) -> Table:
    """The settings that were run, and those of the others than which none is faster that changes fewer decisions."""
    others = [each for each in found.settings if each.measured is None and each.frontier]
    rows: list[tuple[str, ...]] = [("target", "measured", "1", _percent(found.target.accuracy), "", "", "", "")]
    rows += [_row(each, each.measured) for each in found.measured]
    rows += [_row(each, None) for each in others]
    return Table("Settings (simulated)" if found.simulated else "Settings", HEADER, tuple(rows))


def _row(each: TunedSetting, measured: Measured | None) -> tuple[str, ...]:
    known = (_percent(each.chains_known), "" if each.changed is None else f"{each.changed:.2f}", _percent(each.unverified))
    tried = "" if each.accuracy_tried is None else f", as tried {_percent(each.accuracy_tried)}"
    between = f"{_percent(each.accuracy_low)} to {_percent(each.accuracy_high)}{tried}"
    if measured is None:
        return (each.label, "predicted", _times(each.over_target), between, "", *known)
    loss = f"{_percent(measured.loss.value)} [{_percent(measured.loss.low)}, {_percent(measured.loss.high)}]"
    known_before = not each.recorded and each.chains_known is not None
    foretold = f" (predicted {_times(each.over_target)})" if known_before else ""
    accuracy = _percent(measured.accuracy) + (f" (predicted {between})" if known_before else "")
    return (each.label, "recorded" if each.recorded else "confirmed", _times(measured.over_target) + foretold, accuracy, loss, *known)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}".replace("%", " %").replace("-0.0", "0.0")


def _times(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f} times"
