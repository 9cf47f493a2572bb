"""FedGrEM and the methods it is compared with on similar mixtures with an outlier.

Figure 3 and Tables 4 and 5 of Tian, Weng, Feng 2024: ten clients (tasks), five components in ten dimensions, one
outlier. The figure has no numbers; its claims stand in the notes. Every client's components are matched in their own
way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from fedcore.papers.experiment import Cell, Options, Place, ResultTable
from fedcore.papers.fedem.runs import own_data_only, verdict
from fedcore.papers.fedgrem import runs
from fedcore.papers.fedgrem.simulation.errors import errors
from fedcore.papers.fedgrem.simulation.similar_mixtures import Model, Preset, simulated_clients

DISTANCES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
QUICK_DISTANCES = (0.0, 1.0, 2.0)
STEPS = (0.55, 0.75, 0.95, 1.05, 1.25, 1.35)
QUICK_STEPS = (0.55, 1.25)
WHOLE_REPETITIONS, QUICK_REPETITIONS = 20, 2
EACH = 10  # repetitions of a cell
ASKED = {0.0: 0.75, 1.0: 1.15, 2.0: 1.35}  # largest error, mean
NEAR = 1.05

# Table 5: mean largest error of the centres, FedGrEM, by C and h = 0, .25 ... 1.75
TABLE_5 = {
    0.55: (1.36, 1.47, 1.62, 1.71, 1.89, 2.07, 2.23, 2.44),
    0.75: (1.22, 1.34, 1.44, 1.54, 1.71, 1.93, 2.02, 2.25),
    0.95: (1.13, 1.30, 1.34, 1.45, 1.60, 1.82, 1.90, 2.14),
    1.05: (1.12, 1.27, 1.30, 1.42, 1.54, 1.79, 1.85, 2.07),
    1.25: (1.09, 1.23, 1.34, 1.40, 1.50, 1.78, 1.81, 1.99),
    1.35: (1.21, 1.24, 1.31, 1.36, 1.49, 1.81, 1.79, 1.99),
}
# Table 4: the same of the weights, h = 0, .25 ... 1.5
TABLE_4 = {
    0.55: (0.072, 0.071, 0.068, 0.071, 0.072, 0.071, 0.071),
    0.75: (0.072, 0.071, 0.068, 0.071, 0.072, 0.071, 0.071),
    0.95: (0.072, 0.071, 0.068, 0.071, 0.072, 0.071, 0.071),
    1.05: (0.072, 0.071, 0.068, 0.071, 0.071, 0.071, 0.071),
    1.25: (0.072, 0.071, 0.068, 0.071, 0.071, 0.072, 0.071),
    1.35: (0.073, 0.071, 0.069, 0.071, 0.071, 0.072, 0.071),
}


Found = dict[tuple[str, float], dict[str, list[float]]]  # by label and h: of each replication


class FedGrEMGaussians:
    """See the module. A `fedcore.papers.experiment.Experiment`."""

    name = "fedgrem-gmm"
    title = "FedGrEM: errors on similar Gaussian mixtures with an outlier task"
    model: Model = "gaussian"
    preset: Preset = "paper"

    def cells(self, options: Options, place: Place) -> Sequence[Cell]:
        own_data_only(options)
        all_of = runs.repetitions(options, QUICK_REPETITIONS, WHOLE_REPETITIONS)
        parts = [list(all_of[low : low + EACH]) for low in range(0, len(all_of), EACH)]
        return [
            Cell(
                f"{number}-{h:g}-{part[0]}",
                f"{label}, h = {h:g}, from {part[0]}",
                {"settings": settings, "h": h, "seeds": part},
            )
            for part in parts
            for h in distances(options)
            for number, (label, settings) in enumerate(self.lines(options).items())
        ]

    def lines(self, options: Options) -> dict[str, dict]:
        """label: settings."""
        labels = runs.GAUSSIANS if self.model == "gaussian" else runs.REGRESSIONS
        found = {label: dict(runs.LINES[label][1]) for label in labels}
        if self.model == "gaussian":
            steps = QUICK_STEPS if options.quick else STEPS
            found |= {
                f"FedGrEM (paper, one sweep), C {c:g}": {"preset": "paper", "one_sweep": True, "step_size": c}
                for c in steps
                if c != 0.95
            }
        return found

    def compute(self, cell: Cell, options: Options, place: Place) -> dict:
        found: dict[str, list[float]] = {"largest": [], "rms": [], "weights": [], "seconds": []}
        for seed in cell.arguments["seeds"]:
            simulated = simulated_clients(seed, model=self.model, h=cell.arguments["h"], preset=self.preset)
            method = runs.fedgrem({"model": self.model, **cell.arguments["settings"]})
            ran = runs.run(runs.block_of(simulated.rows), seed, method)
            out = ran.method.personalise(ran.state, ran.block, ran.memory)
            centres = errors(out["centres"], simulated.theta, simulated.inlier)
            found["largest"].append(centres.largest)
            found["rms"].append(centres.rms)
            found["weights"].append(errors(out["weights"], simulated.w, simulated.inlier).largest)
            found["seconds"].append(ran.seconds)
        return found

    def table(self, options: Options, results: Mapping[str, dict]) -> ResultTable:
        found = self.gathered(options, results)
        rows = [
            {
                "method": label,
                "h": f"{h:g}",
                "θ largest": runs.with_sd(found[label, h]["largest"]),
                "paper, θ": self.of_paper(label, h, TABLE_5),
                "log2": f"{runs.mean(np.log2(found[label, h]['largest'])):.2f}",
                "θ rms": f"{runs.mean(found[label, h]['rms']):.3f}",
                "w largest": f"{runs.mean(found[label, h]['weights']):.3f}",
                "paper, w": self.of_paper(label, h, TABLE_4),
                "seconds": f"{runs.mean(found[label, h]['seconds']):.2f}",
            }
            for label in self.lines(options)
            for h in distances(options)
        ]
        number = len(runs.repetitions(options, QUICK_REPETITIONS, WHOLE_REPETITIONS))
        return ResultTable(
            f"{self.title}; {number} replications, mean (sd)", rows, [*self.setup(), *self.findings(found, options)]
        )

    def of_paper(self, label: str, h: float, table: Mapping[float, Sequence[float]]) -> str:
        """The paper's number of FedGrEM for the C of the line, if it has one."""
        if self.model != "gaussian" or "paper" not in label:
            return ""
        row = table[float(label.rpartition("C ")[2])] if "C " in label else table[0.95]
        return f"{row[DISTANCES.index(h)]:g}" if DISTANCES.index(h) < len(row) else ""

    def gathered(self, options: Options, results: Mapping[str, dict]) -> Found:
        found = {}
        for number, label in enumerate(self.lines(options)):
            for h in distances(options):
                parts = [cell for key, cell in results.items() if key.startswith(f"{number}-{h:g}-")]
                found[label, h] = {name: [v for part in parts for v in part[name]] for name in parts[0]}
        return found

    def figure(self, options: Options, results: Mapping[str, dict]) -> bytes:
        from fedcore.evaluation.curves import Panel, panels_figure

        found, at = self.gathered(options, results), distances(options)
        left_out = ("C ", "sweep", "unit", "Pooled-GrEM")  # the last is as Pooled-EM; there are seven colours
        shown = [label for label in self.lines(options) if not any(word in label for word in left_out)]
        return panels_figure(
            [
                Panel(
                    {label: (at, [runs.mean(found[label, h][name]) for h in at]) for label in shown},
                    title,
                    "h, how far tasks are from each other",
                    "error",
                    log_y=True,
                )
                for name, title in (
                    ("largest", "Largest error of a centre"),
                    ("rms", "Root mean square error of centres"),
                )
            ]
        )

    def setup(self) -> list[str]:
        return [
            "Ten tasks of 150 rows (regressions: 200, as in the authors' program), five components in ten dimensions, "
            "the last task an outlier and left out of the errors. largest: over tasks and components; the captions of "
            "Tables 4 and 5 say log2, but the paper's numbers are raw errors, and ours are.",
            "Local-EM: every task's start, one full covariance of its own. All methods begin there. one sweep: the "
            "central update as the authors' program makes it; without it the update is solved. The paper's numbers "
            "are of one sweep from a weaker start, with an outlier of N(2.5, 4) where ours is N(2, 3) as in its text.",
            "Seconds with the start, in this process, on whatever else the machine did.",
        ]

    def findings(self, found: Found, options: Options) -> list[str]:
        own = "FedGrEM (default)"
        said = []
        for h in distances(options):
            others = {label for label, at in found if at == h and label != own}
            ratios = {}
            for name in ("largest", "rms"):
                best = min(others, key=lambda label: runs.mean(found[label, h][name]))
                ratios[name] = (runs.mean(found[own, h][name]) / runs.mean(found[best, h][name]), best)
            met = all(ratio <= NEAR for ratio, _ in ratios.values())
            text = ", ".join(f"{name} {ratio:.2f} ({best})" for name, (ratio, best) in ratios.items())
            bound = ""
            if self.model == "gaussian" and h in ASKED:
                value = runs.mean(found[own, h]["largest"])
                bound = f"; largest {value:.2f}, asked {ASKED[h]:g}, {verdict(value <= ASKED[h])}"
            asked = f", asked at most {NEAR:g}, {verdict(met)}" if self.model == "gaussian" else ""
            said.append(f"h = {h:g}: the default relative to the best other line: {text}{asked}{bound}.")
        return said


class FedGrEMRegressions(FedGrEMGaussians):
    """The same for mixtures of linear regressions, of which the paper has the right half of Figure 3."""

    name = "fedgrem-mor"
    title = "FedGrEM: errors on similar mixtures of regressions with an outlier task"
    model: Model = "regression"
    preset: Preset = "code"


def distances(options: Options) -> tuple[float, ...]:
    return QUICK_DISTANCES if options.quick else DISTANCES
