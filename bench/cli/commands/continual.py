"""``continual``: ways to learn a sequence of collections, from a TOML file to a report."""

from pathlib import Path

from bench.cli.commands.adapt import Bars
from bench.cli.commands.common import print_json, resampling_of, workspace
from bench.cli.commands.opening import check_once
from bench.cli.commands.plans import report, say, typed
from bench.cli.early_checks import check_out
from bench.cli.options.shared import Hardware
from bench.cli.options.study import ContinualOptions
from bench.evaluate.judging import common_measure
from bench.evaluate.pipeline import Options, conditions_here
from bench.exit_codes import ExitCode
from bench.experiments.sequence.comparing import Compared, Domains, before, rows_of
from bench.experiments.sequence.learning import Work, described
from bench.experiments.sequence.settings import Comparison, load_comparison
from reports.figures import can_plot
from reports.forgetting_plots import draw
from reports.sequence_tables import comma_separated, markdown, plan


def continual(options: ContinualOptions) -> int:
    """``continual``: check everything, learn each sequence, write the report."""
    comparison = load_comparison(options.file, options.variant)
    resampling = resampling_of(options.resampling)
    resampling.check_enough(max(len(comparison.methods), len(comparison.domains)) - 1)
    out = options.out / comparison.name
    check_out(out)
    with Bars() as bars:
        work = _work(comparison, options, out, bars)
        work.check()
        if options.dry_run:
            return _show(work, options)
        base = work.base()
        learnt = [work.learn(method) for method in comparison.methods]
    names = tuple(one.dataset.name for one in work.domains)
    also = tuple(one.dataset.name for one in work.also)
    domains = Domains(names, also, work.measure, resampling)
    levels, average = before(base, learnt, domains)
    rows = rows_of(base, learnt, domains)
    found = Compared(
        name=comparison.name,
        title=comparison.title or comparison.name,
        measure=work.measure,
        domains=names,
        also=also,
        queries=rows[0].forgetting.queries,
        base=base.name,
        before=levels,
        before_average=average,
        rows=rows,
        trained=trained_as(comparison),
        command=typed("continual", options),
        conditions=conditions_here(options.work.device),
        resampling=resampling,
        unofficial=tuple(
            one.dataset.name for one in (*work.domains, *work.also) if not one.official
        ),
    )
    text = markdown(found, _pictures(found, out))
    report(out, found, text, comma_separated(found), options.output.json)
    return ExitCode.OK


def _work(comparison: Comparison, options: ContinualOptions, out: Path, bars: Bars) -> Work:
    hardware = Hardware(device=options.work.device, max_memory=options.max_memory)
    space = workspace(options.places, hardware, options.allow_mismatch)
    domains, also = (
        [member for name in names for member in space.expand([name])]
        for names in (comparison.domains, comparison.also)
    )
    check_once([*domains, *also])
    opened = list(space.open_all([*domains, *also]).values())
    measure = common_measure([each.dataset for each in opened], comparison.evaluate.measure or None)
    return Work(
        comparison=comparison,
        domains=opened[: len(domains)],
        also=opened[len(domains) :],
        out=out,
        space=space,
        measure=measure,
        options=Options(measures=(measure,)),
        device=options.work.device,
        save_every=options.work.save_every,
        report=bars,
        say=say,
    )


def trained_as(comparison: Comparison) -> str:
    """What every training is, in a line."""
    preset = comparison.pretraining()
    length = f"{preset.steps:,} steps" if preset.steps else f"{preset.epochs:g} epochs"
    return (
        f"{comparison.preset} from {preset.start.model}: {length} of "
        f"{preset.batch_size * preset.accumulate} texts, up to {preset.max_tokens} tokens, "
        f"learning rate {preset.optimizer.lr:g}, seed {preset.seed}"
    )


def _show(work: Work, options: ContinualOptions) -> int:
    """``--dry-run``."""
    comparison = work.comparison
    told = {name: described(one) for name, one in comparison.methods.items()}
    sizes = {one.dataset.name: len(one.dataset.corpus) for one in (*work.domains, *work.also)}
    if options.output.json:
        print_json({"methods": told, "documents": sizes, "trained": trained_as(comparison)})
    else:
        print(plan(told, sizes, trained_as(comparison), len(work.domains)))
    return ExitCode.OK


def _pictures(found: Compared, folder: Path) -> list[str]:
    """Draw the heat map of each method, where that can be done."""
    if not can_plot():
        say("no pictures: pip install 'retrieval-bench[plots]'")
        return []
    for row in found.rows:
        draw(row.forgetting, folder / f"{row.method}.svg")
    return [row.method for row in found.rows]
