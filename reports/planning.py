"""Answers of `tracegap plan`: what a training or a server of a model must cost at least, and what to expect."""

import dataclasses
import json
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from tracegap.ingest import manifest
from tracegap.ingest.manifest import Manifest
from tracegap.models import campaign, hardware, hf_config, presets, published, search, serving
from tracegap.models.architecture import Model
from tracegap.models.errors import TracegapError
from tracegap.models.hardware import Chip
from tracegap.models.mesh import Links, sizes
from tracegap.models.plan import Plan, plan_towers, slowest
from tracegap.models.recipe import Recipe, recipe_of
from tracegap.models.search import Candidate
from tracegap.models.units import GB, S_PER_HOUR, TERA

DEFAULT_BATCH = 1 << 22
"""Tokens of a step where nobody says: about the 4M that Llama 3 and the Scaling Book train on."""
DEFAULT_SEQ = 8192
"""Tokens of a sequence where a `config.json` allows more: what models are mostly trained on."""
HOST_CARDS = 8
"""Cards of one host, joined by PCIe, where a part has no links of its own or only a bridge between two."""
SHOWN = 8
"""Meshes of a ranking that are answered."""
SCALING_POINTS = 10
"""Numbers of devices in a scaling curve, each twice the one before."""
MOST_DEVICES = 1 << 20
"""That a plan takes: several times the largest clusters."""
AXIS_OF = {"schedule": "pipeline", "virtual_stages": "pipeline", "context": "context", "async_tensor": "tensor"}
"""Axis without which a choice of a recipe is none."""


def model_of(description: dict[str, Any], source: str = "[model] of the manifest") -> Model:
    """The model that the [model] table of a manifest describes.

    By sizes; by `preset`, the name of one, which other keys change; or in the keys of a Hugging Face config.json, known by
    `model_type`, to which `seq` may be added. Keys that the theory does not use are left alone. Towers are tables of their
    own: [model.towers.vision].

    Raises:
        TracegapError: it lacks a key that the theory needs, or names no preset or architecture that is known.
    """
    known = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(Model)}
    given = {k: v for k, v in description.items() if k in known and k != "towers"}
    towers = tuple((name, model_of(table)) for name, table in description.get("towers", {}).items())
    if "preset" in description:
        return dataclasses.replace(presets.get(str(description["preset"])).model, **given | {"towers": towers})
    if "model_type" in description:
        model = hf_config.model_from(description)
        return dataclasses.replace(model, seq=description.get("seq", model.seq), towers=towers)
    missing = [name for name, needed in (known | {"seq": True}).items() if needed and name not in description]
    if missing:
        raise TracegapError(f"{source} lacks {', '.join(missing)}")
    return Model(**given, towers=towers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a plan; None: what the manifest says, else a default that the answer names."""

    model: str
    """Name of a preset, or path of a `config.json` or of a manifest; or numbers: "layers=32,hidden=4096,..." of a model
    table, which may follow one of the others to change it."""
    hardware: str | None = None
    """Catalogue id; several joined by commas are one job, gated by the slowest."""
    devices: int | None = None
    mesh: dict[str, int] | None = None
    batch_tokens: int | None = None
    seq: int | None = None
    tokens: float | None = None
    """To train on."""
    usd_per_device_hour: float | None = None
    device_mtbf_hours: float | None = None
    """Mean hours between failures of one device; None, as the two that follow: campaign's default."""
    checkpoint_s: float | None = None
    """For which a checkpoint stops the training."""
    restart_s: float | None = None
    """From a failure to the first new step."""
    network_gb_per_s: float | None = None
    """A device's share of the network in one direction, where the catalogue has none or the host another."""
    measured_tflops: float | None = None
    """Model TFLOP/s a device that somebody measured."""
    recipe: Recipe = dataclasses.field(default_factory=Recipe)
    kept: tuple[str, ...] = ()
    """Of `zero`, `recompute` and `schedule` those of the recipe that are asked for even where they are the default; what
    is the default else is chosen as a ranking does: as little as fits."""
    serve: bool = False
    prompt: int = 8192
    answer: int = 512
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    scaling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model that is asked about."""

    name: str
    source: str
    model: Model
    described: Manifest
    """Empty for presets and `config.json`."""
    assumed: tuple[str, ...] = ()
    longest: int | None = None
    """Tokens of the longest sequence that a `config.json` states; None: not stated. Presets say what is usual."""


def subject_of(text: str, seq: int | None = None) -> Subject:
    """Finds what a word, a path or numbers mean.

    Raises:
        TracegapError: neither a file nor a preset, or what is there does not describe a model.
    """
    if "=" not in text or Path(text).is_file():
        return _named(text, seq)
    named, numbers = [], {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if equals:
            numbers[key] = _value(value)
        else:
            named.append(item)
    unknown = numbers.keys() - {f.name for f in dataclasses.fields(Model)} | numbers.keys() & {"towers"}
    if unknown:
        names = ", ".join(f.name for f in dataclasses.fields(Model) if f.name != "towers")
        raise TracegapError(f"{text}: {min(unknown)!r} is no number of a model; known are {names}")
    if not named:
        model = model_of(numbers | ({} if seq is None else {"seq": seq}), "the description")
        return Subject(name=text, source="numbers as given", model=model, described=Manifest())
    base = _named(",".join(named), seq or numbers.get("seq"))
    changed = dataclasses.replace(base.model, **numbers | {"seq": base.model.seq})
    words = ", ".join(f"{key} = {value}" for key, value in numbers.items())
    return dataclasses.replace(base, name=f"{base.name}, {words}", model=changed)


def _value(text: str) -> Any:
    """A number, true or false, or a word, as TOML has them but for the quotes."""
    try:
        return tomllib.loads(f"it = {text}")["it"]
    except tomllib.TOMLDecodeError:
        return text


def _named(text: str, seq: int | None) -> Subject:
    path = Path(text)
    if not text.strip():
        raise TracegapError("an empty name where a model is expected; `tracegap plan --help` lists the presets")
    if path.is_dir():
        inside = path / "config.json"
        hint = f": {inside} in it may be meant" if inside.is_file() else ""
        raise TracegapError(f"{text} is a folder, not a model{hint}")
    if not path.is_file():
        if path.exists():
            raise TracegapError(f"{text} is no regular file")
        if path.suffix in (".json", ".toml", ".yaml", ".yml"):
            raise TracegapError(f"{text}: no such file")
        preset = presets.get(text)
        return Subject(name=preset.name, source=preset.source, model=_with_seq(preset.model, seq), described=Manifest())
    if not path.read_bytes().strip():
        raise TracegapError(f"{path} is empty")
    if path.suffix == ".json" and (subject := _of_config(path, seq)):
        return subject
    described = manifest.load(path)
    if described.model is None:
        raise TracegapError(f"{path}: the manifest lacks [model]")
    try:
        model = _with_seq(model_of(described.model), seq)
    except TracegapError as e:
        raise TracegapError(f"{path}: {e}") from e
    return Subject(name=described.job or path.stem, source=str(path), model=model, described=described)


def _of_config(path: Path, seq: int | None) -> Subject | None:
    """The model of a config.json of Hugging Face; None where the file is another, a manifest perhaps."""
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError) as e:
        raise TracegapError(f"{path}: not JSON: {e}") from e
    if not isinstance(config, dict) or not config:
        raise TracegapError(f"{path}: no config.json of a model (model_type) and no manifest ([model])")
    if "model_type" in config or "architectures" in config:
        try:
            model = hf_config.model_from(config)
        except TracegapError as e:
            raise TracegapError(f"{path}: {e}") from e
        chosen = seq or min(model.seq or DEFAULT_SEQ, DEFAULT_SEQ)
        assumed = [f"sequences of {chosen:,} tokens (--seq)"] if seq is None and chosen != model.seq else []
        if config.get("quantization_config"):
            assumed.append(f"quantization_config is ignored: weights are {model.dtype} (--weights with --serve)")
        return Subject(
            name=path.stem if path.stem != "config" else path.absolute().parent.name,
            source=str(path),
            model=_with_seq(model, chosen),
            described=Manifest(),
            assumed=tuple(assumed),
            longest=model.seq,
        )
    return None


def _with_seq(model: Model, seq: int | None) -> Model:
    return model if seq is None else dataclasses.replace(model, seq=seq)


def answer(question: Question) -> dict[str, Any]:
    """The answer as JSON prints it. Keys of the plan of the best mesh stand beside the rest.

    Raises:
        TracegapError: too little is said, or a part or rate is unknown.
    """
    subject = subject_of(question.model, question.seq)
    described, model = subject.described, subject.model
    chip = _chip(question.hardware or described.hardware, question.model)
    result: dict[str, Any] = {
        "model": subject.name,
        "source": subject.source,
        "hardware": chip.id,
        "hardware_name": chip.name,
        "seq": model.seq,
        "params": model.params,
        "active_params": model.active_params,
        "assumed": list(subject.assumed),
    }
    if question.measured_tflops is not None:
        smell = published.smell(chip, question.measured_tflops * TERA, model.dtype)
        result["smell"] = {"measured_tflops": question.measured_tflops, **dataclasses.asdict(smell)}
    else:
        result["smell"] = None
    result["published"] = [dataclasses.asdict(t) for t in published.TRAININGS if t.chip == chip.id]
    _check_devices(question.devices)
    if question.serve:
        if subject.longest and not model.positions and question.prompt + question.answer > subject.longest:
            result["assumed"].append(_longer(question.prompt + question.answer, subject.longest))
        return result | {"serving": _serving(question, model, chip, result["assumed"])}
    return result | _training(_with_recipe(question, described.recipe or {}), subject, chip, result["assumed"])


CHOSEN = ("zero", "recompute", "schedule")
"""Choices of a recipe that a ranking makes where nobody says."""


def _with_recipe(question: Question, said: dict[str, Any]) -> Question:
    """What the manifest's [recipe] says, where the question says nothing else."""
    recipe = recipe_of({name: value for name, value in said.items() if name not in question.kept}, question.recipe)
    kept = tuple(name for name in CHOSEN if name in said or name in question.kept)
    return dataclasses.replace(question, recipe=recipe, kept=kept)


def on_mesh(
    subject: Subject,
    chip: Chip,
    mesh: dict[str, int],
    tokens_per_step: int,
    *,
    recipe: Recipe,
    kept: Collection[str] = (),
    links: Links | None = None,
) -> Candidate:
    """The plan of one mesh; its recipe is what is said, and else what a ranking would choose.

    Raises:
        TracegapError: the mesh does not divide the model or the batch, or a rate is unknown.
    """
    model = subject.model
    links = links or links_of(chip, subject.described, sizes(mesh).devices, [])
    _check_mesh(mesh, recipe)
    try:
        return search.of_mesh(model, chip, mesh, tokens_per_step, recipe, links=links, kept=kept)
    except TracegapError as e:
        # What follows from a batch of part sequences is told with its cause
        raise TracegapError("; ".join([str(e), *_uneven(tokens_per_step, model.seq or 1)])) from e


def links_of(
    chip: Chip, described: Manifest, devices: int | None, assumed: list[str], network_bytes_per_s: float | None = None
) -> Links:
    """Where the ranks of a training sit: as its manifest says, else as slices and hosts usually are."""
    topology = described.topology or {}
    return Links(
        chip=chip,
        ranks_per_domain=topology.get("ranks_per_domain") or _host_cards(chip, devices, assumed),
        torus=topology.get("torus") or (search.slice_shape(chip, devices) if devices and not described.mesh else None),
        wrap=topology.get("wrap"),
        network_bytes_per_s=network_bytes_per_s,
    )


def _chip(names: str | None, source: str) -> Chip:
    if names is None:
        raise TracegapError(f"{source} lacks hardware (or --hardware): a part that `tracegap hardware` lists")
    return slowest([hardware.get(name.strip()) for name in names.split(",")])


def _step_tokens(question: Question, subject: Subject, assumed: list[str]) -> int:
    """Tokens of a step, at least one sequence."""
    seq = subject.model.seq
    tokens = question.batch_tokens or subject.described.tokens_per_step
    if tokens is None:
        if subject.described.model is not None:
            raise TracegapError(f"{subject.source}: the manifest lacks tokens_per_step (or --batch-tokens)")
        tokens = DEFAULT_BATCH // (seq or 1) * (seq or 1) or (seq or 1)
        assumed.append(f"steps of {tokens:,} tokens (--batch-tokens)")
    if seq is not None and tokens < seq:
        raise TracegapError(
            f"a step of {tokens:,} tokens does not hold one sequence of {seq:,}: "
            "raise --batch-tokens (tokens_per_step) or lower --seq"
        )
    return tokens


def _mesh(question: Question, subject: Subject) -> dict[str, int] | None:
    """The mesh that is asked for, if one is."""
    described = subject.described
    mesh = question.mesh or (None if question.devices else described.mesh)
    if mesh is None and question.devices is None and described.world_size:
        mesh = {"data": described.world_size}
    if mesh:
        _check_mesh(mesh, question.recipe)
    if question.recipe.expert_skew != 1 and not subject.model.experts:
        raise TracegapError("--expert-skew (expert_skew) is of a mixture of experts, which this model is not")
    return mesh


def _training(question: Question, subject: Subject, chip: Chip, assumed: list[str]) -> dict[str, Any]:
    described, model = subject.described, subject.model
    tokens_per_step = _step_tokens(question, subject, assumed)
    uneven = _uneven(tokens_per_step, model.seq or 1)
    assumed += uneven
    if model.positions and (model.seq or 0) > model.positions:
        assumed.append(_positions(model, model.seq or 0))
    network = None if question.network_gb_per_s is None else question.network_gb_per_s * GB
    mesh = _mesh(question, subject)
    sequences = tokens_per_step // (model.seq or 1)
    fewest = search.fewest_devices(model, chip, tokens_per_step, question.recipe, kept=question.kept)
    devices = sizes(mesh).devices if mesh else question.devices or fewest
    links = links_of(chip, described, devices, assumed, network)
    out: dict[str, Any] = {
        "tokens_per_step": tokens_per_step,
        "fewest_devices": fewest,
        "torus": list(links.torus) if links.torus else None,
        "tried": None,
        "fitting": None,
        "ranking": [],
        "campaign": None,
        "scaling": None,
        "fits": False,
        "remedies": [],
        "devices": devices,
        "unfit": None,
        "optimal_tokens": None if model.lora_rank else campaign.TOKENS_PER_PARAM * model.active_params,
        "towers": {},
    }
    if mesh:
        candidates = [
            on_mesh(subject, chip, mesh, tokens_per_step, recipe=question.recipe, kept=question.kept, links=links)
        ]
    elif devices:
        ranking = search.rank(model, chip, devices, tokens_per_step, question.recipe, links=links, kept=question.kept)
        candidates = list(ranking.distinct)
        out |= {"tried": ranking.tried, "fitting": ranking.fitting}
    else:
        candidates = []
    if candidates:
        best = candidates[0]
        if best.plan.fits is False:
            out["remedies"] = list(search.remedies(model, best, tokens_per_step))
        assumed.extend(_dealt(model, best.plan, tokens_per_step))
        out |= _plan(best.plan) | {"params": model.params, "recipe": dataclasses.asdict(best.recipe)}
        out["math_dtype"] = best.recipe.math_dtype or model.dtype
        if model.towers:
            out |= _towers(subject, chip, best, tokens_per_step, links)
        if out["fits"] is False:
            room = (best.plan.memory_bytes or 0) / GB
            out["unfit"] = f"the mesh needs {out['memory_total'] / GB:,.1f} GB a device, which has {room:,.1f} GB"
        out["ranking"] = [_candidate(candidate) for candidate in candidates[:SHOWN]]
        if question.tokens:
            assumed += _reliability_assumed(question)
            out["campaign"] = _campaign(question, model, best.plan.devices, out["predicted_ns"], tokens_per_step)
    else:
        out["unfit"] = _why_none(model, chip, devices, sequences, out["tried"])
    if question.scaling and fewest:
        counts = [fewest << i for i in range(SCALING_POINTS)]
        curve = search.scaling(model, chip, tokens_per_step, counts, question.recipe, kept=question.kept)
        # The curve is a coarse search: the mesh that was found by the full one stands for its number of devices
        known = {} if mesh else {candidate.plan.devices: candidate for candidate in candidates[:1]}
        points = [known.get(point.plan.devices, point) for point in curve.points]
        out["scaling"] = {"limit": curve.limit, "points": [_candidate(point) for point in points]}
    return out


def _dealt(model: Model, found: Plan, tokens_per_step: int) -> Iterator[str]:
    """What is assumed where the sequences of a step do not divide over the replicas."""
    sequences, replicas = tokens_per_step / (model.seq or 1), sizes(found.mesh).batch_ways
    if found.busiest <= 1:
        return
    if sequences <= replicas - 1:
        idle = replicas - ceil(sequences)
        yield f"{ceil(sequences):,} sequences for {replicas:,} replicas: {idle:,} idle while the others take one each"
    else:
        most = ceil(sequences / replicas)
        yield f"{sequences:,.1f} sequences over {replicas:,} replicas: the step waits for the busiest, which has {most:,}"


def _uneven(tokens: int, seq: int) -> list[str]:
    """What is to be said of a batch that is no whole number of sequences."""
    if tokens % seq == 0:
        return []
    power = min((seq << i for i in range(tokens.bit_length() + 1)), key=lambda whole: abs(whole - tokens))
    return [
        f"{tokens:,} tokens a step are {tokens / seq:,.1f} sequences of {seq:,}: {tokens // seq * seq:,} would be whole, "
        f"{power:,} a power of two of them (--batch-tokens)"
    ]


def _positions(model: Model, tokens: int) -> str:
    return f"sequences of {tokens:,} tokens, though the model's table ends at position {model.positions:,}"


def _longer(tokens: int, longest: int) -> str:
    return f"sequences of {tokens:,} tokens, though the model was made for {longest:,}"


def _reliability_assumed(question: Question) -> list[str]:
    """What a campaign takes for granted where nobody says."""
    said = (
        (question.device_mtbf_hours, "a failure of each device every "
         f"{campaign.DEVICE_MTBF_S / S_PER_HOUR:,.0f} h, as of Llama 3's H100s, whatever the part (--mtbf)"),
        (question.checkpoint_s, f"a checkpoint stops training for {campaign.CHECKPOINT_S:.0f} s (--checkpoint)"),
        (question.restart_s, f"{campaign.RESTART_S:.0f} s from a failure to the next new step (--restart)"),
    )  # fmt: skip
    return [words for value, words in said if value is None]


def _why_none(model: Model, chip: Chip, devices: int | None, sequences: int, tried: int | None) -> str:
    """Why no mesh holds a training."""
    if devices is None:
        return "the model and its batch do not fit into the memory of any number of devices that was tried"
    if tried:
        memory = f" of {chip.device_memory_bytes / GB:,.0f} GB" if chip.device_memory_bytes else ""
        return f"memory{memory}: none of {tried:,} meshes that divide the model and the batch fits"
    if any(search.meshes(model, chip, devices, devices * (model.seq or 1), coarse=True)):
        return f"a step has fewer sequences ({sequences:,}) than replicas: raise --batch-tokens or lower --seq"
    return f"{devices:,} devices do not divide heads, layers, experts and sequences of the model"


def _check_devices(devices: int | None) -> None:
    if devices and devices > MOST_DEVICES:
        raise TracegapError(f"{devices:,} devices: a plan takes at most {MOST_DEVICES:,}")


def _check_mesh(mesh: dict[str, int], recipe: Recipe) -> None:
    """Raises TracegapError where a mesh is larger than any cluster, or a choice would be without effect on it."""
    size = sizes(mesh)
    _check_devices(size.devices)
    for choice, axis in AXIS_OF.items():
        if getattr(recipe, choice) != getattr(Recipe(), choice) and getattr(size, axis) == 1:
            option = choice.replace("_", "-")
            raise TracegapError(f"--{option} ({choice}) needs a mesh with a {axis} axis: this one has none")


def _host_cards(chip: Chip, devices: int | None, assumed: list[str]) -> int | None:
    """Ranks of a host, where nobody says and a part's own links do not."""
    if chip.kind != "gpu" or (chip.scaleup_max_domain is not None and chip.scaleup_shape != "bridge"):
        return None
    if devices and devices > HOST_CARDS:
        assumed.append(f"{HOST_CARDS} cards a host (ranks_per_domain in [topology] of a manifest)")
    return HOST_CARDS * chip.trace_devices_per_package


def _plan(found: Plan) -> dict[str, Any]:
    return dataclasses.asdict(found) | {
        "fits": found.fits,
        "memory_total": found.memory.total,
        "mfu": found.mfu,
        "flops_per_s_per_device": found.model_flops / found.devices / found.predicted_ns * 1e9,
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    found = candidate.plan
    return {
        "devices": found.devices,
        "mesh": found.mesh,
        "recompute": candidate.recipe.recompute,
        "zero": candidate.recipe.zero,
        "schedule": candidate.recipe.schedule,
        "virtual_stages": candidate.recipe.virtual_stages,
        "microbatches": found.microbatches,
        "predicted_ns": found.predicted_ns,
        "lower_ns": found.lower_ns,
        "upper_ns": found.upper_ns,
        "mfu": found.mfu,
        "memory_total": found.memory.total,
        "fits": found.fits,
        "bound": found.bound,
    }


def _towers(subject: Subject, chip: Chip, best: Candidate, tokens_per_step: int, links: Links) -> dict[str, Any]:
    """The plans of a model's towers, and what becomes of times, memory and MFU with them.

    `mesh` in a tower's table is its own mesh; without one it is data parallel over all devices. The parts of a model
    lie on the same devices and run one after the other.
    """
    tables = (subject.described.model or {}).get("towers", {})
    devices = best.plan.devices
    meshes = {name: tables.get(name, {}).get("mesh", {"data": devices}) for name, _ in subject.model.towers}
    plans = plan_towers(subject.model, chip, {"": best.plan.mesh, **meshes}, tokens_per_step, best.recipe, links=links)
    towers = [plans[name] for name in meshes]
    parts = [best.plan, *towers]
    # The buffers of the model serve the towers too, whose turn comes before or after
    memory = {
        name: value + sum(getattr(tower.memory, name) for tower in towers if name != "buffers")
        for name, value in dataclasses.asdict(best.plan.memory).items()
    }
    total = sum(memory.values())
    step_ns = sum(part.predicted_ns for part in parts)
    flops = sum(part.model_flops for part in parts)
    capacity = best.plan.memory_bytes
    return {
        "towers": {name: _plan(plans[name]) for name in meshes},
        "lower_ns": sum(part.lower_ns for part in parts),
        "predicted_ns": step_ns,
        "upper_ns": sum(part.upper_ns for part in parts),
        "memory": memory,
        "memory_total": total,
        "fits": None if capacity is None else total <= capacity,
        "model_flops": flops,
        "mfu": flops / devices / best.plan.peak_flops_per_s / step_ns * 1e9,
        "flops_per_s_per_device": flops / devices / step_ns * 1e9,
    }


def _campaign(question: Question, model: Model, devices: int, step_ns: int, tokens_per_step: int) -> dict[str, Any]:
    told = {
        "device_mtbf_s": None if question.device_mtbf_hours is None else question.device_mtbf_hours * S_PER_HOUR,
        "checkpoint_s": question.checkpoint_s,
        "restart_s": question.restart_s,
    }
    reliability = campaign.goodput(devices, **{name: value for name, value in told.items() if value is not None})
    run = campaign.campaign(
        active_params=model.active_params,
        tokens=question.tokens or 0,
        tokens_per_step=tokens_per_step,
        step_s=step_ns / 1e9,
        devices=devices,
        usd_per_device_hour=question.usd_per_device_hour,
        reliability=reliability,
    )
    return dataclasses.asdict(run)


def _serving(question: Question, model: Model, chip: Chip, assumed: list[str]) -> dict[str, Any]:
    assumed.append(f"a server fills {serving.USABLE_MEMORY:.0%} of the memory of its devices")
    if model.positions and question.prompt + question.answer > model.positions:
        assumed.append(_positions(model, question.prompt + question.answer))
    weight_dtype = question.weight_dtype or model.dtype
    kv_dtype = question.kv_dtype or model.dtype
    context = question.prompt + question.answer
    fewest = serving.fewest_devices(model, chip, context=context, weight_dtype=weight_dtype, kv_dtype=kv_dtype)
    devices = question.devices or fewest or 1
    server = serving.Server(
        model=model,
        chip=chip,
        devices=devices,
        context=context,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        math_dtype=question.recipe.math_dtype,
        torus=search.slice_shape(chip, devices) if devices > 1 else None,
        ranks_per_domain=_host_cards(chip, devices, assumed),
        network_bytes_per_s=None if question.network_gb_per_s is None else question.network_gb_per_s * GB,
    )
    if question.recipe.math_dtype is None and weight_dtype != server.arithmetic:
        assumed.append(f"{weight_dtype} weights are multiplied in {server.arithmetic} (--math)")
    points = serving.frontier(server)
    share = published.reachable_share(chip.id, server.arithmetic) or 1.0
    unfit = None
    if not points:
        # Weights alone, or beside them not even one cache
        needed = server.weight_bytes + server.cache_bytes
        room = serving.USABLE_MEMORY * devices * (chip.device_memory_bytes or 0)
        unfit = f"weights and one sequence need {needed / GB:,.1f} GB, there are {room / GB:,.1f} GB"
    out: dict[str, Any] = {
        "devices": devices,
        "fewest_devices": fewest,
        "unfit": unfit,
        "prompt": question.prompt,
        "answer": question.answer,
        "weight_dtype": weight_dtype,
        "kv_dtype": kv_dtype,
        "math_dtype": server.arithmetic,
        "weight_bytes": server.weight_bytes,
        "cache_bytes_per_sequence": server.cache_bytes,
        "max_sequences": server.max_sequences,
        "points": [dataclasses.asdict(point) for point in points],
        "prefill_s": serving.prefill_s(server, question.prompt, share),
        "prefill_share_of_peak": share,
        "disaggregation": None,
    }
    if points:
        last = points[-1].batch
        split = serving.disaggregate(server, last, question.prompt, question.answer, share)
        out["disaggregation"] = dataclasses.asdict(split) | {"batch": last}
        out["speculation"] = {
            "accept": 0.8,
            "draft_len": 4,
            "draft_cost": 0.05,
            "speedup_at_batch_1": serving.speculate(server, 1, accept=0.8, draft_len=4, draft_cost=0.05),
            "speedup_at_most": serving.speculate(server, last, accept=0.8, draft_len=4, draft_cost=0.05),
        }
    return out
