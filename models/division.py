"""How a batch and a model divide over a mesh: sequences of the busiest replica, and meshes that cannot be."""

from math import ceil

from tracegap.models.architecture import Model
from tracegap.models.errors import NoFormula
from tracegap.models.mesh import Sizes


def busiest_sequences(model: Model, size: Sizes, tokens_per_step: int) -> int:
    """Whole sequences of the replica that has most: ceil(tokens / seq / replicas).

    A synchronous step waits for it. Where there are fewer sequences than replicas it has one, and others have none. A
    model without `seq` is divided by tokens.
    """
    return ceil(tokens_per_step / (model.seq or 1) / size.batch_ways)


def head_ways(model: Model) -> int:
    """What a tensor axis must divide: heads, or the channels of a recurrence without attention."""
    return model.heads or model.inner or 1


def check(model: Model, size: Sizes) -> None:
    """Raises NoFormula where a mesh leaves a stage without a layer, or heads or experts that do not divide.

    More tensor ranks than key/value heads hold copies of them, and stages may differ by a layer.
    """
    layers = model.layers + model.encoder_layers
    if size.pipeline > layers:
        raise NoFormula(f"pipeline={size.pipeline}: the model has {layers} layers, and each stage needs one")
    ways = head_ways(model)
    if ways % size.tensor:
        what = "heads" if model.heads else "channels" if model.inner else "way to split a layer"
        raise NoFormula(f"tensor={size.tensor} does not divide the model's {ways} {what}")
    if size.expert > 1 and not model.experts:
        raise NoFormula(f"expert={size.expert}: the model has no experts; fsdp or data divide the batch")
    if model.experts and model.experts % size.expert:
        raise NoFormula(f"expert={size.expert} does not divide the model's {model.experts} experts")


def check_microbatches(microbatches: int, sequences: int) -> None:
    """Raises NoFormula where the sequences of the busiest replica are not so many microbatches of whole sequences."""
    if sequences % microbatches:
        raise NoFormula(
            f"{microbatches:,} microbatches do not divide the {sequences:,} sequences of a replica: "
            "each takes whole sequences, as many as the others"
        )
