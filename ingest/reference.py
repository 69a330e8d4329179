"""The pages docs/formulas.md and docs/chips.md, made of what the code says: `python -m tracegap.ingest.reference docs`.

Formulas are the functions registered in `tracegap.models`, with their docstrings; operators are the tables of
`ingest/classify`. A test keeps the pages as fresh as the code.
"""

import inspect
import pkgutil
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import tracegap.models
from tracegap.ingest.classify import aten_names, aten_table, hlo_cost
from tracegap.models import formulas, hardware, quantities

_BOOK = "*How to Scale Your Model*"
_SHAPES = "Dense shapes known when the trace was made; sparsity, ragged batches and dropped tokens are not seen."
_LINKS = "Equal parts, no other traffic on the links, a topology that is what the placement says, steady state."
_PEAK = "Peaks hold at the clock of the data sheet; power and heat take up to a fifth of it."
TOPICS: dict[str, tuple[str, str, str]] = {
    "H": ("Peaks from the inside of a chip", f"{_BOOK}, chapters 2 and 12; vendors' data sheets", _PEAK),
    "R": ("Roofline", f"{_BOOK}, chapter 1; XLA's and XProf's rooflines", f"A lower or an upper bound. {_PEAK}"),
    "Q": (
        "What whole units lose",
        f"NVIDIA's guide to deep-learning performance; {_BOOK}, chapters 2 and 9",
        "Libraries may choose other tiles, split the contraction or keep a grid running.",
    ),
    "M": (
        "Operations",
        f"{_BOOK}, chapter 4; PyTorch's flop counter; TraceLens; XLA's cost analysis",
        f"Bytes are compulsory: each operand read once, each result written once. {_SHAPES}",
    ),
    "S": ("Sharded arrays and products", f"{_BOOK}, chapter 3", "Sizes that divide; the order of mesh axes is free."),
    "T": ("Collectives on a torus", f"{_BOOK}, chapters 2, 3, 5, 7 and 9", f"{_LINKS} Twisted tori are not modelled."),
    "G": (
        "Collectives behind switches",
        f"{_BOOK}, chapter 12; Llama 3; NVIDIA's specifications",
        f"{_LINKS} Full bisection up to the network's rate of a device.",
    ),
    "N": (
        "NCCL's and XLA's models of a collective",
        "nccl-tests PERFORMANCE.md; NCCL's tuning.cc; XLA's GPU models",
        "Constants differ by release, and RCCL has its own.",
    ),
    "X": (
        "Parameters and FLOPs of a Transformer",
        f"{_BOOK}, chapter 4; Transformer Math 101 and its cookbook; Megatron-LM; PaLM",
        "Conventions differ (causal half, head, embeddings): each function says its own.",
    ),
    "P": (
        "Training in parallel",
        f"{_BOOK}, chapters 5, 6 and 12; Megatron-LM; ZeRO; zero-bubble pipelines",
        f"{_LINKS} Balanced stages and experts.",
    ),
    "Y": (
        "Memory",
        f"{_BOOK}, chapters 4 to 6; Transformer Math 101; Korthikanti et al.; ZeRO; DeepSpeed's estimators",
        "Without contexts of the driver, work spaces, allocator caches and fragmentation, unless said.",
    ),
    "C": ("Compute and cost", "Transformer Math 101; Chinchilla; Megatron-LM", "Rules for dense models."),
    "U": ("Utilisation", "PaLM, appendix B; Korthikanti et al.; Narayanan et al.", "Peak and convention as named."),
    "I": (
        "Inference",
        f"{_BOOK}, chapters 7 and 8; Leviathan et al.",
        "Attention bound by memory; independent acceptance of drafts.",
    ),
    "O": (
        "Overlap",
        "Interval arithmetic; data-parallel buckets",
        "Compute is not slowed by what it hides, unless said.",
    ),
    "E": ("Stragglers", "Order statistics of normal step times", "Independent devices; real straggling is correlated."),
    "F": (
        "Failures",
        "Young 1974; Daly 2006; Llama 3",
        "Checkpoints and restarts much shorter than the time between failures.",
    ),
}
"""Title, sources and limits by the first letter of a formula's code."""

_CODE = re.compile(r"\[([A-Z]\d+\w*)((?:,? (?:to |and )?[A-Z]\d+\w*)*)[^\]]*\]")
_HEAD = "<!-- made by `make docs`: edit the code, not this page -->"


def formulas_page() -> str:
    """docs/formulas.md."""
    lines = [
        _HEAD,
        "",
        "# Formulas",
        "",
        "Everything that tracegap computes without a trace, by subject. A code names a formula; worked examples",
        "(`pytest tests/test_golden.py --golden FILE.csv`) call a quantity by its name and its code. FLOPs count one",
        "multiply-add as 2, sizes are bytes, rates bytes a second of one direction. Limits stand under each subject and in",
        "the words of each function.",
    ]
    for letter, (title, source, limits) in TOPICS.items():
        rows = [
            (name, code, _signature(function), _words(function), _place(function))
            for (name, code), function in quantities.formulas().items()
            if code.startswith(letter)
        ]
        lines += ["", f"## {title}", "", f"Source: {source}.  ", f"Limits: {limits}", ""]
        if rows:
            lines += _table(("quantity", "code", "inputs", "what it is", "function"), rows)
        others = sorted(set(_coded(letter)))
        if others:
            lines += ["", *_table(("built on it", "what it does"), others)]
    lines += ["", "## Costs of operations", "", *_operations()]
    lines += ["", "## Operators without a formula", "", *_without()]
    lines += ["", "## HLO instructions", "", *_hlo()]
    return "\n".join(lines) + "\n"


def _operations() -> Iterator[str]:
    yield f"FLOPs and bytes from shapes [M1 to M10]. {_SHAPES} What is not in a trace is unknown, with the reason."
    yield ""
    users: dict[str, list[str]] = defaultdict(list)
    for name, entry in aten_table.entries().items():
        users[entry.kind].append(name)
    rows = [
        (kind, _words(function), _place(function), " ".join(sorted(users[kind])))
        for kind, function in formulas.known().items()
    ]
    yield from _table(("formula", "what it counts", "function", "operators (`aten::` where no namespace stands)"), rows)


def _without() -> Iterator[str]:
    yield "Their class is known, their cost is not: it depends on what a trace does not record."
    yield ""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, (op_class, reason) in aten_names.REASONS.items():
        reasons[op_class, reason].append(name)
    yield from _table(
        ("class", "why", "operators"),
        [(op_class, reason, " ".join(sorted(names))) for (op_class, reason), names in sorted(reasons.items())],
    )


def _hlo() -> Iterator[str]:
    yield "By opcode, where a profile has no cost of its own (`ingest/classify/hlo_cost.py`): elementwise operations count 1"
    yield "an element of the result, data movement and transcendental functions 0, fusions the sum of what is inside."
    yield ""
    codes: dict[Callable[..., object], list[str]] = defaultdict(list)
    for opcode, function in hlo_cost.FLOPS.items():
        codes[function].append(opcode)
    yield from _table(
        ("opcodes", "FLOPs"), [(" ".join(sorted(names)), _words(function)) for function, names in codes.items()]
    )


def _modules() -> Iterator[ModuleType]:
    for module in pkgutil.walk_packages(tracegap.models.__path__, "tracegap.models."):
        yield import_module(module.name)


def _coded(letter: str) -> Iterator[tuple[str, str]]:
    """Public functions that are not registered themselves and say in their words which formulas they are built on."""
    registered = set(quantities.formulas().values()) | set(formulas.known().values())
    for module in _modules():
        for name, item in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(item) or item.__module__ != module.__name__:
                continue
            codes = re.findall(r"[A-Z]\d+", " ".join(map("".join, _CODE.findall(item.__doc__ or ""))))
            if item not in registered and any(code.startswith(letter) for code in codes):
                yield _place(item), _words(item)


def _place(function: Callable[..., object]) -> str:
    return f"`{function.__module__.removeprefix('tracegap.')}.{getattr(function, '__name__', '')}`"


def _signature(function: Callable[..., object]) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters)


def _words(function: Callable[..., object]) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", r"\|") for cell in row) + " |"


_FIGURES = {
    "bf16_tflops": "bf16",
    "fp16_tflops": "fp16",
    "fp8_tflops": "fp8",
    "int8_tops": "int8",
    "fp4_tflops": "fp4",
    "tf32_tflops": "tf32",
    "fp32_tflops": "fp32 vector",
    "hbm_gb": "memory GB",
    "hbm_gbps": "GB/s",
    "onchip_mb": "on chip MB",
    "onchip_gbps": "on chip GB/s",
    "scaleup_gbps_per_dir": "scale-up GB/s",
    "scaleout_gbps": "network GB/s",
    "pcie_gbps": "host GB/s",
}


def chips_page() -> str:
    """docs/chips.md."""
    chips = hardware.catalogue().values()
    lines = [
        _HEAD,
        "",
        "# Chips",
        "",
        "The catalogue `models/chips/`, one file a part: nominal figures of a whole package, dense, in 10^12 FLOP/s, 10^9",
        "bytes a second of one direction, 10^9 bytes. A trace shows some packages as several devices. Empty: not supported,",
        "or not known. To add a part, add a file; tests find it.",
        "",
        *_table(
            ("id", "part", "devices", *_FIGURES.values(), "links", "largest domain"),
            [
                (
                    chip.id,
                    f"{chip.vendor} {chip.name}",
                    f"{chip.trace_devices_per_package}",
                    *(_figure(getattr(chip, column)) for column in _FIGURES),
                    " ".join(filter(None, (chip.scaleup_kind, chip.scaleup_shape))),
                    _figure(chip.scaleup_max_domain),
                )
                for chip in chips
            ],
        ),
        "",
        "## Where the figures come from",
        "",
        *_table(
            (
                "id",
                "names in traces",
                "source",
                "single figures from elsewhere",
                "compared",
                "confidence",
                "entered",
                "beware",
            ),
            [
                (
                    chip.id,
                    "; ".join(chip.match_names),
                    chip.source,
                    "; ".join(f"{column}: {source}" for column, source in chip.sources.items()),
                    chip.checked,
                    chip.confidence,
                    chip.entered.isoformat(),
                    chip.note or "",
                )
                for chip in chips
            ],
        ),
        "",
        f"All columns: {', '.join(f'`{column.name}`' for column in fields(hardware.Chip))}.",
    ]
    return "\n".join(lines) + "\n"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


PAGES = {"formulas.md": formulas_page, "chips.md": chips_page}


def main(folder: str) -> None:
    """Writes the pages into a folder."""
    for name, page in PAGES.items():
        Path(folder, name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
