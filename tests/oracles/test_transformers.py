"""Hugging Face's Transformers as an oracle: parameters of the models that it builds from a `config.json`.

Skipped where transformers and torch are not installed; they are no dependencies. Met with transformers 5.24: no deviation
in any architecture of `models/hf_config.py`, each with the library's own default configuration, written as it writes it.
"""

import json

import pytest

from tracegap.models import hf_config

torch = pytest.importorskip("torch", reason="the oracle needs torch: pip install torch")
transformers = pytest.importorskip("transformers", reason="the oracle needs transformers: pip install transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALLER = {
    "deepseek_v2": {"num_hidden_layers": 3, "first_k_dense_replace": 1},
    "deepseek_v3": {"num_hidden_layers": 5},
    "gemma3_text": {"num_hidden_layers": 12},
    "jamba": {"num_hidden_layers": 8},
}


@pytest.mark.parametrize("name", sorted(hf_config.ARCHITECTURES))
def test_parameters(name):
    try:
        config = transformers.AutoConfig.for_model(name, **SMALLER.get(name, {}))
    except ValueError:
        pytest.skip(f"no {name} in transformers {transformers.__version__}")
    built = transformers.T5ForConditionalGeneration if name == "t5" else transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = built(config)
    model.tie_weights()
    written = json.loads(json.dumps(config.to_dict(), default=str))
    assert hf_config.model_from(written).params == sum(weight.numel() for weight in model.parameters())
