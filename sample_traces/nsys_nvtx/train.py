"""A small training loop in numpy, marked with NVTX ranges; `capture.sh` runs it under Nsight Systems.

Ranges: `train` (start/end) around all, `step N` with `forward`, `backward` and `optimizer` inside and a range for each
layer inside those; `load_batch` on a thread of its own in the domain "data".
"""

import queue
import threading

import numpy as np
import nvtx

LAYERS, WIDTH, BATCH, STEPS = 4, 256, 128, 6
LEARNING_RATE = 1e-3


def load(batches: "queue.Queue[np.ndarray]") -> None:
    """Makes the batches, one ahead of the training."""
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        with nvtx.annotate("load_batch", domain="data", color="green"):
            batch = random.standard_normal((BATCH, WIDTH)).astype(np.float32)
        batches.put(batch)


def step(number: int, batch: np.ndarray, weights: list[np.ndarray]) -> float:
    """One step that learns the identity through a stack of layers; its loss."""
    with nvtx.annotate(f"step {number}", color="blue"):
        inputs = [batch]
        with nvtx.annotate("forward"):
            for layer, weight in enumerate(weights):
                with nvtx.annotate(f"layer_{layer}"):
                    inputs.append(np.maximum(inputs[-1] @ weight, 0.01 * (inputs[-1] @ weight)))
        gradient = 2 * (inputs[-1] - batch) / batch.size
        loss = float(np.mean((inputs[-1] - batch) ** 2))
        gradients = []
        with nvtx.annotate("backward"):
            for layer in reversed(range(LAYERS)):
                with nvtx.annotate(f"layer_{layer}"):
                    gradient = gradient * np.where(inputs[layer + 1] > 0, 1, 0.01).astype(np.float32)
                    gradients.append(inputs[layer].T @ gradient)
                    gradient = gradient @ weights[layer].T
        with nvtx.annotate("optimizer"):
            for weight, of_weight in zip(weights, reversed(gradients), strict=True):
                np.subtract(weight, LEARNING_RATE * of_weight, out=weight)
        nvtx.mark("step_end")
    return loss


def main() -> None:
    """Trains."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16 for _ in range(LAYERS)]
    batches: queue.Queue[np.ndarray] = queue.Queue(1)
    loader = threading.Thread(target=load, args=(batches,), name="loader")
    loader.start()
    whole = nvtx.start_range("train", color="red")
    for number in range(STEPS):
        loss = step(number, batches.get(), weights)
    nvtx.end_range(whole)
    loader.join()
    print(f"loss {loss:.4f}")


if __name__ == "__main__":
    main()
