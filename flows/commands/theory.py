"""Without a trace: `hardware`, `plan`."""

from pathlib import Path
from typing import Any

import click

from tracegap.flows.options import Count, Finite, Mesh, Rule, Written, check_together
from tracegap.flows.shell import (
    CHECK_FAILED,
    cli,
    dump,
    json_option,
    show,
)


@cli.command()
@click.argument("chip", required=False)
@json_option
def hardware(chip: str | None, as_json: bool) -> None:
    """List the catalogue of parts, or show one with its sources.

    Example: tracegap hardware h100_sxm
    """
    from tracegap.models import hardware as parts
    from tracegap.reports import tables

    rows = [c.row() for c in ([parts.get(chip)] if chip else parts.catalogue().values())]
    if as_json:
        dump(rows)
    elif chip:
        show(tables.table(["", chip], [(k, v) for k, v in rows[0].items() if v not in (None, "")]))
    else:
        columns = (
            "id",
            "name",
            "bf16_tflops",
            "fp8_tflops",
            "hbm_gb",
            "hbm_gbps",
            "scaleup_gbps_per_dir",
            "scaleup_max_domain",
        )
        show(tables.table(columns, [tuple(r[c] for c in columns) for r in rows]))


MOST_SEQ = 1 << 30
"""Tokens of a sequence, microbatches or chunks."""
_FOR_TRAINING = (
    "mesh", "batch_tokens", "tokens", "price", "mtbf", "checkpoint", "restart", "recompute", "zero", "schedule",
    "virtual_stages", "microbatches", "context", "async_tensor", "expert_skew", "optimizer", "gradients", "offload",
    "scaling",
)  # fmt: skip
_TOGETHER = (
    Rule(options=_FOR_TRAINING, beside="serve", why=", which trains nothing"),
    Rule(options=("prompt", "answer", "weight_dtype", "kv_dtype"), without="serve"),
    Rule(options=("devices",), beside="mesh", why=", which says how many devices there are"),
    Rule(options=("price", "mtbf", "checkpoint", "restart"), without="tokens", why=", the length of the training"),
)


class _WithPresets(click.Command):
    """Lists the presets below its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tracegap.models import presets

        with formatter.section("Presets"):
            formatter.write_text(", ".join(presets.names()))
        super().format_epilog(ctx, formatter)


@cli.command(cls=_WithPresets)
@click.argument("model")
@click.option("--hardware", "chip", help="Part, by catalogue id; of several, joined by commas, the slowest counts.")
@click.option(
    "--devices",
    type=click.IntRange(1),
    help="Devices to find the best meshes for; else the fewest that fit.",
)
@click.option("--mesh", type=Mesh(), help="One mesh instead, such as fsdp=16,tensor=8; the last axis is the fastest.")
@click.option("--batch-tokens", type=Count(), help="Tokens of a step, such as 4M.")
@click.option("--seq", type=click.IntRange(1, MOST_SEQ), help="Tokens of a sequence.")
@click.option("--tokens", type=Count(1e18), help="Tokens to train on, such as 15T: days, device-hours, money.")
@click.option("--price", type=Finite(0), help="USD a device-hour.")
@click.option("--mtbf", type=Finite(), help="Hours between failures of one device; else 50,700, of Llama 3's H100s.")
@click.option("--checkpoint", type=Finite(), help="Seconds that a checkpoint stops training; else 30.")
@click.option("--restart", type=Finite(0), help="Seconds from a failure to the next new step; else 600.")
@click.option("--network", type=Finite(), help="A device's share of the network, GB/s.")
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    help="Activations computed again: the attention core, or all of a layer. Not given: as little as fits.",
)
@click.option("--zero", type=click.IntRange(0, 3), help="ZeRO stage of data-parallel replicas. Not given: 1.")
@click.option(
    "--schedule",
    help="Of a pipeline: gpipe, 1f1b, interleaved, zero_bubble_h1, zero_bubble_h2 or dualpipe. Not given: the faster "
    "of 1f1b and interleaved.",
)
@click.option(
    "--virtual-stages", type=click.IntRange(1, MOST_SEQ), default=1, show_default=True, help="With interleaved."
)
@click.option(
    "--microbatches", type=click.IntRange(1, MOST_SEQ), help="Of a replica in a step. Not given: as few as fit."
)
@click.option("--context", default="ring", show_default=True, help="Of a context axis: ring, ulysses or all_gather.")
@click.option("--async-tensor", is_flag=True, help="Tensor collectives run beside pieces of their products.")
@click.option(
    "--expert-skew",
    type=Finite(1),
    default=1,
    show_default=True,
    help="Tokens of the busiest rank over the mean.",
)
@click.option(
    "--optimizer",
    default="adamw",
    show_default=True,
    help="Or adam8bit, sgd_momentum, adam_fp32: 12, 6, 8, 8 bytes a weight.",
)
@click.option("--gradients", type=Finite(), help="Bytes of a gradient; else as a weight.")
@click.option("--math", "math_dtype", help="Dtype of matrix products, such as fp8; else the model's.")
@click.option("--offload", multiple=True, help="To the host: optimizer, activations; may be given twice.")
@click.option("--measured", type=Finite(), help="TFLOP/s a device: can that be true?")
@click.option("--scaling", is_flag=True, help="Also the best mesh of more and more devices.")
@click.option("--serve", is_flag=True, help="Serve the model instead of training it, in 95 % of the memory.")
@click.option(
    "--prompt", type=click.IntRange(1, MOST_SEQ), default=8192, show_default=True, help="Tokens; with --serve."
)
@click.option(
    "--answer", type=click.IntRange(1, MOST_SEQ), default=512, show_default=True, help="Tokens; with --serve."
)
@click.option("--weights", "weight_dtype", help="Dtype of served weights: bf16, fp8, int8, int4.")
@click.option("--kv", "kv_dtype", help="Dtype of the cache.")
@click.option("--page", "out", type=Written(), help="Also write a page with charts.")
@json_option
@click.pass_context
def plan(ctx: click.Context, /, model: str, chip: str | None, out: Path | None, as_json: bool, **asked: Any) -> None:
    """Say what training or serving a model must cost, and on which mesh it is best, without any trace.

    MODEL is a preset such as llama-3-70b, a Hugging Face config.json, a manifest with [model], [mesh] and
    tokens_per_step, as beside traces, or numbers: layers=32,hidden=4096,heads=32,ffn=14336,vocab=128256,seq=8192.
    Numbers may follow one of the others to change it, as in llama-3-70b,lora_rank=16.

    The exit status is 1 where nothing fits: the mesh that was asked for, no mesh of that many devices, or not one sequence
    beside served weights.

    Example: tracegap plan llama-3-70b --hardware h100_sxm --devices 512 --tokens 15T --price 2.5
    """
    from tracegap.models.recipe import Recipe
    from tracegap.reports import plan_text, planning

    check_together(ctx, _TOGETHER)
    recipe = Recipe(
        zero=asked["zero"] or 0,
        recompute=asked["recompute"] or "none",
        schedule=asked["schedule"] or "1f1b",
        virtual_stages=asked["virtual_stages"],
        microbatches=asked["microbatches"],
        context=asked["context"],
        async_tensor=asked["async_tensor"],
        expert_skew=asked["expert_skew"],
        gradient_bytes=asked["gradients"],
        optimizer=asked["optimizer"],
        math_dtype=asked["math_dtype"],
        offload=tuple(asked["offload"]),
    )
    result = planning.answer(
        planning.Question(
            model=model,
            hardware=chip,
            devices=asked["devices"],
            mesh=asked["mesh"],
            batch_tokens=None if asked["batch_tokens"] is None else round(asked["batch_tokens"]),
            seq=asked["seq"],
            tokens=asked["tokens"],
            usd_per_device_hour=asked["price"],
            device_mtbf_hours=asked["mtbf"],
            checkpoint_s=asked["checkpoint"],
            restart_s=asked["restart"],
            network_gb_per_s=asked["network"],
            measured_tflops=asked["measured"],
            recipe=recipe,
            kept=tuple(name for name in ("zero", "recompute", "schedule") if asked[name] is not None),
            serve=asked["serve"],
            prompt=asked["prompt"],
            answer=asked["answer"],
            weight_dtype=asked["weight_dtype"],
            kv_dtype=asked["kv_dtype"],
            scaling=asked["scaling"] or out is not None,
        )
    )
    if as_json:
        dump(result)
    else:
        for part in plan_text.screen(result):
            show(part)
    if out:
        from tracegap.reports import page

        click.echo(f"page: {page.render_plan(result, out)}", err=as_json)
    if (result.get("serving") or result)["unfit"]:
        ctx.exit(CHECK_FAILED)
